"""Several runs at once on one `runs/`: who works, who waits, who takes over, and what a person is told of it."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.cli import main
from flows.record import PROGRESS
from flows.references import find_pipeline, pipeline_records
from tests.flows.forking import Forker, Handle

PAIRS = ["experiment=smoke", "~pipeline.sft", "~pipeline.preference", "~pipeline.reinforce", "~pipeline.evaluate"]
PAIRS += ["pairs.max_prompts=48"]
"""One step: pairs from the base. While it samples it leaves MLflow's database alone, and so can be halted there."""
TRAIN = ["experiment=smoke", "~pipeline.pairs", "~pipeline.preference", "~pipeline.reinforce"]
"""Two steps: sft and evaluate."""


def eventually(what: Callable[[], object], seconds: float = 120) -> float:
    """Wait until something is so; returns how long it took."""
    started = time.monotonic()
    while not what():
        assert time.monotonic() - started < seconds, "waited in vain"
        time.sleep(0.05)
    return time.monotonic() - started


class Started:
    """A run in a process of its own, with what it printed."""

    def __init__(self, forker: Forker, runs_dir: Path, name: str, arguments: list[str]) -> None:
        self.runs_dir = runs_dir
        self.log = runs_dir.parent / f"{name}.log"
        self.log.touch()
        self.handle: Handle = forker.start(arguments, self.log)

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    @property
    def record(self) -> dict:
        return next(record for record in pipeline_records(self.runs_dir) if record["pid"] == self.handle.pid)

    def halt_at_work(self) -> float:
        """Stop the process (it keeps its locks) in the middle of its step; returns how long it took to get it."""
        took = eventually(lambda: "pairs: pairs from base" in self.text)
        eventually((self.runs_dir / "pipelines" / self.record["id"] / PROGRESS).exists)
        self.handle.kill(signal.SIGSTOP)
        return took


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Empty at first, and then shared by all."""
    return tmp_path_factory.mktemp("together") / "runs"


def status(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict]:
    capsys.readouterr()
    assert main(["status", "--runs-dir", str(runs_dir), "--json"]) == 0
    return {run["run"]: run for run in json.loads(capsys.readouterr().out)}


def test_four_at_once_do_every_step_once(forker, runs_dir):
    arguments = ["run", *TRAIN, f"runs_dir={runs_dir}"]
    runs = [Started(forker, runs_dir, f"log{number}", [*arguments, f"name=run{number}"]) for number in range(4)]
    assert [run.handle.wait() for run in runs] == [0] * 4, "\n".join(run.text for run in runs)
    for step in ("sft", "evaluate"):
        states = sorted(run.record["steps"][step]["state"] for run in runs)
        assert states == ["cached"] * 3 + ["completed"]
        assert len({run.record["steps"][step]["store"] for run in runs}) == 1
    ids = {run.record["id"] for run in runs}
    waits = [line for run in runs for line in run.text.splitlines() if "waiting for" in line]
    assert all(any(f"waiting for {other} (pid " in line for other in ids) for line in waits)
    client = MlflowClient(f"sqlite:///{runs_dir / 'mlflow.db'}")
    children = client.search_runs([client.get_experiment_by_name("ratchet").experiment_id])
    assert len([run for run in children if run.data.tags.get("mlflow.parentRunId")]) == 4 * 2


def test_waiters_can_be_interrupted_and_one_takes_over_when_the_holder_dies(forker, runs_dir, capsys):
    arguments = ["run", *PAIRS, f"runs_dir={runs_dir}"]
    holder = Started(forker, runs_dir, "holder", arguments)
    holder.halt_at_work()
    waits = f"pairs: waiting for {holder.record['id']} (pid {holder.handle.pid} on {holder.record['host']}), which is"
    heir = Started(forker, runs_dir, "heir", arguments)
    eventually(lambda: waits in heir.text)  # and so begins before the two that are to be the last of their kind
    terminated, stopped = (Started(forker, runs_dir, name, arguments) for name in ("term", "int"))
    for run in (terminated, stopped):
        eventually(lambda run=run: waits in run.text)
    shown = status(runs_dir, capsys)
    assert shown[holder.record["id"]]["step_state"] == "running"
    assert shown[heir.record["id"]]["step_state"] == "waiting"

    for run, number, code in ((terminated, signal.SIGTERM, 143), (stopped, signal.SIGINT, 130)):
        run.handle.kill(number)
        assert run.handle.wait() == code
        assert run.text.endswith("ratchet: interrupted; the same command continues\n") and "Traceback" not in run.text
        assert (run.record["state"], run.record["steps"]["pairs"]["state"]) == ("interrupted", "skipped")
        assert mlflow_status(run) == "KILLED"

    holder.handle.kill(signal.SIGKILL)
    assert heir.halt_at_work() < 60  # a second on a quiet machine
    assert holder.record["state"] == "interrupted"
    assert main(["cancel", holder.record["id"], "--runs-dir", str(runs_dir)]) == 2
    assert "its process is gone" in capsys.readouterr().err

    cancelled = heir.record["id"]
    assert main(["cancel", cancelled, "--runs-dir", str(runs_dir)]) == 0
    heir.handle.kill(signal.SIGCONT)
    assert heir.handle.wait() == 143
    assert "ratchet: cancelled; the same command continues" in heir.text and "Traceback" not in heir.text
    assert (heir.record["state"], heir.record["steps"]["pairs"]["state"]) == ("cancelled", "cancelled")
    assert (mlflow_status(heir), prefect_state(heir)) == ("KILLED", "Cancelled")
    assert main(["cancel", cancelled, "--runs-dir", str(runs_dir)]) == 2
    assert "does not run, it is cancelled" in capsys.readouterr().err

    (orphan,) = status(runs_dir, capsys).values()  # of the interrupted runs of one command, the last
    again = Started(forker, runs_dir, "again", shlex.split(orphan["resume"])[1:])
    assert again.handle.wait() == 0, again.text
    assert status(runs_dir, capsys) == {}


def mlflow_status(run: Started) -> str:
    client = MlflowClient(f"sqlite:///{run.runs_dir / 'mlflow.db'}")
    return str(client.get_run(run.record["mlflow_run"]).info.status)


def prefect_state(run: Started) -> str:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return str(client.read_flow_run(run.record["prefect_run"]).state.name)


@pytest.mark.slow
def test_a_detached_run_is_known_at_once_and_goes_on_by_itself(forker, tmp_path, capsys):
    runs_dir = tmp_path / "runs"
    run = Started(forker, runs_dir, "detach", ["run", *PAIRS, f"runs_dir={runs_dir}", "--detach", "--json"])
    assert run.handle.wait() == 0, run.text
    said = json.loads(run.text)
    assert status(runs_dir, capsys)[said["run"]]["pid"] == said["pid"]
    assert Path(f"/proc/{said['pid']}/fd/0").readlink() == Path("/dev/null")
    assert int(Path(f"/proc/{said['pid']}/stat").read_text().split()[5]) == said["pid"]  # a session of its own
    assert main(["cancel", said["run"], "--wait", "--runs-dir", str(runs_dir)]) == 0
    assert capsys.readouterr().out.endswith(f"{said['run']}: cancelled\n")
    assert "cancelled; the same command continues" in Path(said["output"]).read_text()
    record = find_pipeline(runs_dir, said["run"])
    assert record is not None and record["command"] == ["ratchet", "run", *PAIRS, f"runs_dir={runs_dir}"]


@pytest.mark.slow
def test_a_new_machine_can_take_several_at_once(tmp_path):
    """Each process starts a temporary Prefect server, on one new database, and ends that of a process that died."""
    from flows.prefect_server import is_server

    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_SERVER_LOGGING_LEVEL": "WARNING"}
    servers = tmp_path / "prefect" / "ratchet"
    command = [sys.executable, "-m", "flows", "run", *PAIRS, f"runs_dir={tmp_path / 'runs'}"]
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "env": environment}
    killed = subprocess.Popen(command, **{**options, "stderr": subprocess.DEVNULL})  # a pipe its server would keep open
    eventually(lambda: list(servers.glob("*/alive.lock")), 300)
    (orphan,) = servers.glob("*-*")
    killed.kill()
    killed.wait()
    pid = int(orphan.name.rsplit("-", 1)[1])
    assert is_server(pid)  # Prefect itself would leave it there for ever
    runs = [subprocess.Popen(command, **options) for _ in range(2)]
    errors = [run.communicate(timeout=300)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], errors
    assert not [error for error in errors if "Traceback" in error or "locked" in error]
    eventually(lambda: not is_server(pid))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--detach", "experiment=smoke", "reinforce.betta=1"], "reinforce.betta: unknown key"),
        (["run", "--detach", "-m", "experiment=smoke", "seed=1,2"], "--detach starts one run; leave out -m"),
        (["cancel", "nope"], "nope: no pipeline run has that name"),
    ],
    ids=["key", "sweep", "name"],
)
def test_mistakes_are_answered_in_the_foreground(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RATCHET_RUNS_DIR", str(tmp_path))
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "pipelines").exists()
