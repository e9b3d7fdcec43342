"""A pipeline that is killed at any moment ends, by the same command, as one that was never killed."""

import json
import random
import signal
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.flows.forking import Forker
from tests.flows.outcomes import outcome

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
EVERY_STEP = [f"{stage}.save_steps=1" for stage in ("sft", "preference", "reinforce")]


def check_tracking(runs_dir: Path) -> None:
    """Every row of every training step is in MLflow, once."""
    client = MlflowClient(f"sqlite:///{runs_dir / 'mlflow.db'}")
    entries = [path.parent for path in (runs_dir / "store").glob("*-*/progress.jsonl")]
    assert len(entries) == 3
    for entry in entries:
        run = json.loads((entry / "tracking.json").read_text())["run"]
        rows = [json.loads(line) for line in (entry / "progress.jsonl").read_text().splitlines()]
        logged = [metric for metric in client.get_metric_history(run, "loss") if metric.step]
        assert [(metric.step, metric.value) for metric in logged] == [(row["step"], row["loss"]) for row in rows]


@pytest.mark.parametrize("kills", [2, pytest.param(25, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_the_same(forker: Forker, tmp_path: Path, kills: int) -> None:
    arguments = ["run", "experiment=smoke", *EVERY_STEP, "hardware.threads=1", "--debug"]
    log, chance = tmp_path / "log.txt", random.Random(kills)
    started = time.monotonic()
    assert forker.start([*arguments, f"runs_dir={tmp_path / 'whole'}"], log).wait() == 0, log.read_text()
    longest = time.monotonic() - started
    expected = outcome(tmp_path / "whole")
    made, finished = 0, 0
    while made < kills or not finished:
        runs_dir = tmp_path / f"killed-{finished}"
        run = forker.start([*arguments, f"runs_dir={runs_dir}"], log)
        if made < kills:
            time.sleep(chance.uniform(0, longest / 4))
            if run.alive():
                made += 1
                run.kill(chance.choice(SIGNALS))
        code = run.wait()
        assert code in (0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGTERM), log.read_text()
        if code == 0:
            finished += 1
            assert outcome(runs_dir) == expected
            check_tracking(runs_dir)
    print(f"{made} kills, {finished} finished runs, all with the same hashes")


@pytest.mark.slow
def test_smollm2_killed_inside_reinforce_ends_the_same(forker: Forker, tmp_path: Path) -> None:
    others = [f"~pipeline.{step}" for step in ("sft", "pairs", "preference", "evaluate")]
    arguments = [
        "run",
        "experiment=smoke",
        "model=smollm2-135m",
        *others,
        *EVERY_STEP,
        "reinforce.max_steps=4",
        "--debug",
    ]
    log = tmp_path / "log.txt"
    assert forker.start([*arguments, f"runs_dir={tmp_path / 'whole'}"], log).wait(300) == 0, log.read_text()
    runs_dir = tmp_path / "killed"
    for step, number in ((2, signal.SIGKILL), (3, signal.SIGTERM)):
        run = forker.start([*arguments, f"runs_dir={runs_dir}"], log)
        wait_for_row(runs_dir, step)
        run.kill(number)
        assert run.wait() in (-signal.SIGKILL, 128 + signal.SIGTERM), log.read_text()
        assert not list((runs_dir / "store").glob("reinforce-*/result.json"))
    assert forker.start([*arguments, f"runs_dir={runs_dir}"], log).wait(300) == 0, log.read_text()
    assert "goes on after step" in log.read_text()
    assert outcome(runs_dir) == outcome(tmp_path / "whole")


def wait_for_row(runs_dir: Path, step: int) -> None:
    """Until `reinforce` has logged a step."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for path in (runs_dir / "store").glob("reinforce-*/progress.jsonl"):
            if len(path.read_text().splitlines()) >= step:
                return
        time.sleep(0.05)
    raise TimeoutError(f"reinforce has not come to step {step}")
