"""The probe in a pipeline: it stops it, sends it round, or is asked alone; what it found is not measured again."""

import json
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError
from flows.cli import main
from flows.commands.probe import probe_alone
from flows.compose import compose_run
from flows.references import find_run, pipeline_records
from flows.workspace import Workspace
from stages.contract import StageResult

SMALL = [
    "experiment=smoke",
    "~pipeline.sft",
    "~pipeline.preference",
    "~pipeline.evaluate",
    "~pipeline.pairs",
    "+pipeline.reinforce.audit=false",
    "pipeline.reinforce.start=base",
    "probe.force=false",
    "probe.success=digits",
    "reinforce.max_steps=1",
]


@pytest.fixture
def run(prefect_server: None, tmp_path: Path) -> Any:
    """Runs a small pipeline in a directory of its own; returns the exit code and the record. Audits have own tests."""

    def go(*overrides: str, command: str = "run") -> tuple[int, Any]:
        code = main([command, *SMALL, f"runs_dir={tmp_path}/runs", *overrides])
        return code, pipeline_records(tmp_path / "runs")[-1]

    return go


def plan(tmp_path: Path, capsys: Any, *overrides: str) -> dict[str, str]:
    capsys.readouterr()
    assert main(["plan", *SMALL, f"runs_dir={tmp_path}/runs", "--json", *overrides]) == 0
    return {row["step"]: row["state"] for row in json.loads(capsys.readouterr().out)}


def test_too_little_success_stops_the_pipeline(run, tmp_path, capsys):
    never = ["probe.success_at=2"]  # the reward is 0 or 1
    code, record = run(*never)
    assert (code, record["state"], record["verdict"]) == (5, "stopped", "stop")
    assert {name: step["state"] for name, step in record["steps"].items()} == {
        "reinforce_probe": "completed",
        "reinforce": "skipped",
    }
    shown = capsys.readouterr()
    assert "Run a short `sft` first" in " ".join(shown.err.split())
    assert "Stopped by reinforce_probe" in shown.out
    states = plan(tmp_path, capsys, *never)
    assert states == {"reinforce_probe": "cached", "reinforce": "not run, reinforce_probe stops"}
    code, record = run(*never)
    assert (code, record["steps"]["reinforce_probe"]["state"]) == (5, "cached")


def test_too_little_success_takes_the_step_that_otherwise_names(run, tmp_path, capsys):
    detour = [
        "+pipeline.warm={stage: sft, data: arithmetic}",
        "probe.otherwise=warm",
        "sft.max_steps=1",
        "probe.success_at=2",
        "reward.arithmetic.digits.pattern='[a-m]'",  # seldom the same for a whole group
    ]
    code, record = run(*detour)
    assert (code, record["verdict"]) == (0, None)
    assert {step["state"] for step in record["steps"].values()} == {"completed"}
    models = {name: find_run(tmp_path / "runs", f"latest/{name}").model().adapters for name in record["steps"]}
    assert len(models["warm"]) == 1 and models["reinforce"][:1] == models["warm"] and len(models["reinforce"]) == 2
    assert set(plan(tmp_path, capsys, *detour).values()) == {"cached"}


def test_a_detour_is_taken_only_when_it_is_asked_for(tmp_path, tiny):
    detour = ["+pipeline.warm={stage: sft, data: arithmetic}", "probe.otherwise=warm"]
    workspace = Workspace(compose_run([*SMALL, f"runs_dir={tmp_path}", *detour]))
    for verdict, due in ((None, False), ("stop", False), ("otherwise", True)):
        assert workspace.is_due("warm", {"reinforce_probe": StageResult(model=tiny, verdict=verdict)}) == due


def test_the_command_probes_alone(run, tmp_path, capsys):
    code, record = run("probe.success_at=2", command="probe")
    shown = capsys.readouterr()
    assert (code, list(record["steps"])) == (5, ["probe"])
    assert "0% (0 of 16;" in " ".join(shown.out.split()) and shown.out not in shown.err
    enough = ["probe.success_at=0", "reinforce.temperature=0.5"]
    code, record = run(*enough, command="probe")
    assert (code, record["verdict"]) == (0, None)
    assert record["config"]["pipeline"]["probe"]["set"]["temperature"] == 0.5  # that of the step it stands before
    code, _ = run("--start", record["id"], *enough, command="probe")
    assert code == 0 and "cached" in capsys.readouterr().err  # the run left the base model itself
    assert plan(tmp_path, capsys, *enough) == {"reinforce_probe": "cached", "reinforce": "run"}


def test_what_cannot_be_probed_alone():
    made = compose_run(["experiment=smoke", "pipeline.reinforce.data={from: pairs}"])
    with pytest.raises(ConfigError, match=r"pipeline.reinforce.data: its rows are made by step 'pairs'"):
        probe_alone(made)
    with pytest.raises(ConfigError, match=r"pipeline: has no reinforce step to probe for"):
        probe_alone(compose_run(["experiment=smoke", "~pipeline.reinforce"]))


def test_alone_it_is_the_probe_of_the_pipeline():
    for overrides in ([], ["+pipeline.reinforce.probe=false"], ["pipeline.reinforce.start=base"]):
        alone = probe_alone(compose_run(["experiment=smoke", *overrides]))
        whole = compose_run(["experiment=smoke"])
        assert alone.settings["probe"] == whole.settings["reinforce_probe"]
        assert alone.steps["probe"].start == "base"
    detour = compose_run(["experiment=smoke", "+pipeline.warm={stage: sft, data: arithmetic}", "probe.otherwise=warm"])
    assert list(probe_alone(detour, "latest").steps) == ["probe"], "alone there is no detour to take"
    assert probe_alone(detour, "latest").steps["probe"].start == "run/latest"
