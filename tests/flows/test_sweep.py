"""Sweeps: what their cells share is made once, they end as one, and the leaderboard says who is surely the best."""

import csv
import json
import os
import shlex
import signal
from xml.etree import ElementTree

import pytest
from mlflow import MlflowClient

from flows.cli import main
from flows.liveness import is_alive
from flows.sweeps.record import sweep_records
from tests.flows.forking import Forker
from tests.flows.sweeping import ALONE, Project, two_cores
from tests.flows.sweeping import project as project
from tests.flows.test_together import eventually


def test_a_sweep_is_one_flow_with_its_cells_in_other_processes(project: Project):
    code, board, said = project.sweep(
        *ALONE, "name=quick", "sft.max_steps=1,30", "seed=1", "orchestration.max_workers=1"
    )
    assert code == 0, said
    assert board["winner"] == {"sft.max_steps": "30"} and board["why"].startswith("winner: sft.max_steps=30, +")
    assert [group["settings"] for group in board["groups"]] == [{"sft.max_steps": "30"}, {"sft.max_steps": "1"}]
    cells = project.cells(board["sweep"])
    assert [cell["state"] for cell in cells] == ["completed"] * 2
    assert len({cell["scored_on"] for cell in board["cells"]} - {""}) == 1
    assert {cell["pid"] for cell in cells}.isdisjoint({os.getpid()})
    assert "cell 1  sft.max_steps=1  begins" in said and "sft: sft from base" not in said
    check_files(project, board)
    check_tracking(project, board, cells)
    check_prefect(cells)


def check_files(project: Project, board: dict) -> None:
    (folder,) = (project.runs / "sweeps").iterdir()
    assert json.loads((folder / "leaderboard.json").read_text())["groups"] == board["groups"]
    with (folder / "leaderboard.csv").open() as file:
        assert [row["sft.max_steps"] for row in csv.DictReader(file)] == ["30", "1"]
    page = (folder / "report.html").read_text()
    root = ElementTree.fromstring(page.removeprefix("<!doctype html>"))
    assert [cell.text for cell in root.iter("td")] == [f"{group['mean']:.3f}" for group in reversed(board["groups"])]
    assert "sft: sft from base" in (folder / "cells" / "1.txt").read_text()


def check_tracking(project: Project, board: dict, cells: list[dict]) -> None:
    """In MLflow the cells are below the sweep, and each has its score."""
    client = MlflowClient(f"sqlite:///{project.runs / 'mlflow.db'}")
    (record,) = sweep_records(project.runs)
    parent = client.get_run(record["mlflow_run"])
    assert parent.info.status == "FINISHED" and parent.data.tags["ratchet.winner"] == board["why"]
    assert {file.path for file in client.list_artifacts(record["mlflow_run"])} >= {"leaderboard.csv", "report.html"}
    for cell in cells:
        run = client.get_run(cell["mlflow_run"])
        assert run.data.tags["mlflow.parentRunId"] == record["mlflow_run"]
        own = next(each for each in board["cells"] if each["run"] == cell["id"])
        assert run.data.metrics["select.task"] == own["score"]


def check_prefect(cells: list[dict]) -> None:
    """The flow of every cell is below a task of one flow."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        flows = [client.read_flow_run(cell["prefect_run"]) for cell in cells]
        parents = {client.read_task_run(flow.parent_task_run_id).flow_run_id for flow in flows}
        (sweep,) = parents
        assert client.read_flow(client.read_flow_run(sweep).flow_id).name == "sweep"
        assert client.read_flow_run(sweep).state.name == "Completed"


@two_cores
@pytest.mark.slow
def test_what_cells_share_is_computed_once(project: Project):
    code, board, said = project.sweep(
        "experiment=asked", "reinforce.beta=0.02,0.3", "reinforce.group_size=2,4", "orchestration.max_workers=2"
    )
    assert code == 0, said
    cells = project.cells(board["sweep"])
    entries = {
        path.parent: json.loads(path.read_text())["seconds"] for path in project.runs.glob("store/*/result.json")
    }
    assert len([path for path in entries if path.name.startswith("sft-")]) == 1
    assert len([path for path in entries if path.name.startswith("reinforce-")]) == 4
    made = sum(step["seconds"] or 0 for cell in cells for step in cell["steps"].values())
    assert made == pytest.approx(sum(entries.values()), rel=0.05) == board["sharing"]["once"]
    assert board["sharing"]["once"] < board["sharing"]["alone"]
    waits = [path.read_text().count("waiting for") for path in project.runs.glob("sweeps/*/cells/*.txt")]
    assert sum(waits) == 0  # nobody was begun to wait for a shared step


@pytest.mark.slow
def test_a_cell_that_fails_stops_no_other(project: Project):
    code, board, said = project.sweep(*ALONE, "sft.learning_rate=1e30,2e-2")
    assert code in (1, 2), said
    failed, fine = board["cells"]
    assert (failed["state"], fine["state"]) == ("failed", "completed")
    assert failed["score"] is None and failed["error"] and failed["error"] in said
    assert board["why"] == "no winner: nothing to compare"


class Sweeping:
    """A sweep in a process of its own: two short cells, then two long ones."""

    def __init__(self, forker: Forker, project: Project) -> None:
        self.arguments = ["run", "-m", *ALONE, "sft.max_steps=2,150", "seed=1,2", "orchestration.max_workers=2"]
        self.log, self._project = project.folder / "log.txt", project
        self.handle = forker.start(self.arguments, self.log)

    def come_to_the_long_ones(self) -> None:
        """Wait until the short cells are done, and the long ones have checkpoints."""
        store = self._project.runs / "store"

        def there() -> bool:
            assert self.handle.alive(), self.log.read_text()
            done = list(store.glob("sft-*/result.json"))
            return len(done) == 2 and len({path.parent for path in store.glob("sft-*/checkpoints/*")}) == 2

        eventually(there, 300)


@two_cores
@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "cancel"])
def test_a_sweep_that_is_ended_ends_its_cells_and_goes_on_where_it_was(forker, project: Project, how: str, capsys):
    sweep = Sweeping(forker, project)
    sweep.come_to_the_long_ones()
    (record,) = sweep_records(project.runs)
    if how == "cancel":
        assert main(["cancel", record["id"], "--wait"]) == 0
        assert capsys.readouterr().out.endswith(f"{record['id']}: cancelled\n")
    else:
        sweep.handle.kill(signal.Signals[how])
    assert sweep.handle.wait() == {"SIGKILL": -9, "SIGTERM": 143, "cancel": 143}[how], sweep.log.read_text()
    folders = [project.runs / "pipelines" / each["id"] for each in project.records()]
    eventually(lambda: not any(map(is_alive, folders)))  # the cells end with it, however it ends
    ended = "cancelled" if how == "cancel" else "interrupted"
    assert [each["state"] for each in project.records()] == ["completed", "completed", ended, ended]
    assert main(["status", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [shlex.split(run["resume"]) for run in shown] == ([["ratchet", *sweep.arguments]] if how != "cancel" else [])
    if how == "SIGKILL":
        code, board, said = project.sweep(*sweep.arguments[2:])
        assert code == 0, said
        states = [cell["steps"]["sft"]["state"] for cell in project.cells(board["sweep"])]
        assert sorted(states) == ["cached", "cached", "completed", "completed"]
        outputs = [path.read_text() for path in project.runs.glob(f"sweeps/{board['sweep']}/cells/*.txt")]
        assert sum("goes on after step" in text for text in outputs) == 2


@two_cores
@pytest.mark.slow
def test_a_process_that_is_killed_takes_no_cell_with_it(forker, project: Project):
    sweep = Sweeping(forker, project)
    sweep.come_to_the_long_ones()
    victim = next(record for record in project.records() if record["state"] == "running")
    os.kill(victim["pid"], signal.SIGKILL)
    assert sweep.handle.wait() == 0, sweep.log.read_text()
    (record,) = sweep_records(project.runs)
    assert [cell["state"] for cell in record["cells"].values()] == ["completed"] * 4
    assert len(project.records()) > 4


@pytest.mark.slow
def test_the_winner_goes_to_the_gate_and_ships(project: Project):
    gate = "+pipeline.gate={stage: gate, start: sft, baseline: champion}"
    options = [*ALONE, gate, "seed=1,2", "sweep.ship_winner=true", "orchestration.max_workers=2"]
    code, board, said = project.sweep(*options, "sft.max_steps=1,30")
    assert code == 0, said
    assert board["shipped"]["state"] == "completed" and board["shipped"]["code"] == 0
    gated = next(record for record in project.records() if record["id"] == board["shipped"]["run"])
    assert gated["verdict"] == "ship" and gated["registered"]["gate"]["version"] == 1
    assert gated["steps"]["sft"]["state"] == "cached"
    assert all("gate" not in cell["steps"] for cell in project.cells(board["sweep"]) if cell["id"] != gated["id"])
    again, board, said = project.sweep(*options, "sft.max_steps=1,1")
    assert again == 4 and "no winner" in board["why"] and "nothing ships" in said


@pytest.mark.slow
def test_optuna_launches_several_times_within_one_flow(project: Project):
    code, board, said = project.sweep(
        *ALONE,
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_trials=4",
        "hydra.sweeper.n_jobs=2",
        "hydra.sweeper.sampler.seed=1",
        "sft.max_steps=choice(1,12,30)",
    )
    assert code == 0, said
    assert len(board["cells"]) == 4
    flows = {record["sweep"]["id"] for record in project.records()}
    assert len(flows) == 1
    best = (project.runs / "optimization_results.yaml").read_text()
    assert f"best_value: {max(cell['score'] for cell in board['cells'])}" in best


OPTUNA = "hydra/sweeper=optuna"
REFUSED = {
    "direction": (
        [OPTUNA, "seed=1,2", "hydra.sweeper.direction=minimize"],
        "hydra.sweeper.direction: a cell returns its",
    ),
    "objective": ([OPTUNA, "seed=1,2", "suite=[]"], "it goes by the mean score of a suite with `role: task`"),
    "gate": (["seed=1,2", "sweep.ship_winner=true"], "sweep.ship_winner: the pipeline has no gate step at its end"),
    "budget": (
        ["seed=1,2", "sweep.budget.completions=15"],
        "sweep.budget.completions: 15 do not pay for one optimiser",
    ),
    "budget and steps": (
        ["reinforce={max_steps:3},{max_steps:5}", "sweep.budget.completions=64"],
        "reinforce.max_steps: sweep.budget decides the number of steps; leave one of them out (in the job reinforce={",
    ),
    "budget and steps to choose from": (
        [OPTUNA, "reinforce=choice({max_steps:3},{max_steps:5})", "sweep.budget.completions=64"],
        "reinforce.max_steps: sweep.budget decides the number of steps; leave one of them out (in the job reinforce={",
    ),
    "range": (["seed=range(1,1)"], "-m: the sweeper made no job; give a setting several values"),
    "glob": (["reinforce.beta=glob(*)"], "-m: the sweeper made no job"),
    "no jobs at once": ([OPTUNA, "seed=1,2", "hydra.sweeper.n_jobs=0"], "-m: the sweeper made no job"),
    "no batch": (["seed=1,2", "hydra.sweeper.max_batch_size=0"], "hydra/sweeper: assert max_batch_size is None or"),
    "no trial": ([OPTUNA, "seed=1,2", "hydra.sweeper.n_trials=0"], "hydra/sweeper: No trials are completed yet.\n"),
    "interval": ([OPTUNA, "reinforce.beta=interval(0.2,0.01)"], "hydra/sweeper: "),
    "grid": (
        [OPTUNA, "hydra/sweeper/sampler=grid", "reinforce.beta=interval(0.01,0.2)"],
        "hydra/sweeper: GridSampler only supports discrete distributions.\n",
    ),
    "storage": ([OPTUNA, "seed=1,2", "hydra.sweeper.storage=sqlite:////nonexistent/x.db"], "hydra/sweeper: "),
    "twice": (
        ["reinforce.beta=0.1", "++reinforce.beta=0.02,0.1"],
        "reinforce.beta: is swept, and given 2 times; give it once",
    ),
    "twice swept": (["seed=1,2", "seed=3,4"], "seed: is swept, and given 2 times"),
    "place": (["runs_dir=x,y"], "runs_dir: is the same for all cells of a sweep; give it one value"),
    "workers": (["orchestration.max_workers=1,2"], "orchestration.max_workers: is the same for all cells of a sweep"),
    "step": (["seed=range(1,3,0)"], "range() arg 3 must not be zero"),
}


@pytest.mark.parametrize(("overrides", "message"), REFUSED.values(), ids=REFUSED)
def test_a_sweep_that_cannot_come_to_anything_is_refused(project: Project, overrides, message):
    code, _, said = project.sweep("experiment=asked", *overrides)
    assert code == 2 and message in said and "a group takes" not in said, said
    assert not (project.runs / "sweeps").exists()


TO_LESS = {
    "section": ("override /hydra/sweeper: optuna", "hydra: {sweeper: {direction: minimize}}\n"),
    "nothing": ("override /hydra/sweeper: optuna", "hydra: {sweeper: {direction: null}}\n"),
    "sweeper": ("override /hydra/sweeper: less", ""),
}


@pytest.mark.parametrize("how", TO_LESS)
def test_an_experiment_that_tells_the_sweeper_to_go_for_less_is_refused_like_a_command_line(project: Project, how):
    choice, section = TO_LESS[how]
    conf = project.folder / "conf"
    (conf / "experiment" / "less.yaml").write_text(
        f"# @package _global_\ndefaults:\n  - asked\n  - {choice}\n{section}"
    )
    (conf / "hydra" / "sweeper").mkdir(parents=True)
    (conf / "hydra" / "sweeper" / "less.yaml").write_text("defaults: [optuna]\ndirection: minimize\n")
    code, _, said = project.sweep("experiment=less", "seed=1,2", "suite=[]")
    assert code == 2 and REFUSED["direction"][1] in said, said
    assert not (project.runs / "sweeps").exists()


def test_an_experiment_may_choose_the_sweeper(project: Project):
    file = project.folder / "conf" / "experiment" / "tuned.yaml"
    file.write_text("# @package _global_\ndefaults:\n  - asked\n  - override /hydra/sweeper: optuna\n")
    code, _, said = project.sweep("experiment=tuned", "seed=1,2", "suite=[]")
    assert code == 2 and "it goes by the mean score of a suite with `role: task`" in said, said
