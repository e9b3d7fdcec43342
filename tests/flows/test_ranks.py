"""A run whose training steps have two processes: killed in between, it leaves none behind, and ends the same."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.flows.forking import Forker
from tests.flows.outcomes import outcome

OTHERS = [f"~pipeline.{step}" for step in ("pairs", "preference", "reinforce", "evaluate")]
RUN = ["run", "experiment=smoke", *OTHERS, "hardware.num_processes=2", "hardware.threads=2", "sft.save_steps=1"]


def ranks(runs_dir: Path) -> list[psutil.Process]:
    """Torchrun and the processes it started for a run, whoever their parent is by now."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "stages.rank_main" in line and any(part.startswith(str(runs_dir)) for part in line):
            found.append(process)
    return found


def rows(runs_dir: Path) -> int:
    return sum(path.read_text().count("\n") for path in (runs_dir / "store").glob("sft-*/progress.jsonl"))


def wait_until(true: object, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_killed_it_leaves_no_process_behind_and_ends_the_same(forker: Forker, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    steps = ["sft.max_steps=60", "--debug"]
    assert forker.start([*RUN, *steps, f"runs_dir={tmp_path / 'whole'}"], log).wait() == 0, log.read_text()
    assert len(outcome(tmp_path / "whole")) >= 3
    runs_dir = tmp_path / "killed"
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 128 + signal.SIGTERM)):
        before = rows(runs_dir)
        run = forker.start([*RUN, *steps, f"runs_dir={runs_dir}"], log)
        wait_until(lambda: rows(runs_dir) > before + 2)  # noqa: B023
        run.kill(number)
        assert run.wait() == code, log.read_text()
        wait_until(lambda: not ranks(runs_dir), 60)
    assert forker.start([*RUN, *steps, f"runs_dir={runs_dir}"], log).wait() == 0, log.read_text()
    assert "goes on after step" in log.read_text()
    assert outcome(runs_dir) == outcome(tmp_path / "whole")
