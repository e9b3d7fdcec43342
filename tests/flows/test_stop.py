"""Being asked to end, being alive, and being continued: the parts of it that need no run."""

import os
import shlex
import signal
import subprocess
import sys

import pytest

from flows.compose import compose_values
from flows.liveness import hold, is_alive
from flows.orphans import interrupted, resume_command
from flows.stop import CANCEL, Stopped, StopRequest
from stages.contract import Interrupted


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_asks_and_the_second_is_not_held_back(number, code, tmp_path):
    said: list[str] = []
    before = signal.signal(number, lambda *_: said.append("as before"))
    try:
        stop = StopRequest(said.append, tmp_path)
        with stop.signals():
            assert not stop.requested()
            signal.raise_signal(number)
            assert stop.requested() and stop.reason == number.name
            signal.raise_signal(number)
        assert len(said) == 2 and said[0].startswith(number.name) and said[1] == "as before"
        assert stop.ended(Interrupted()) == "interrupted" and Stopped(stop.reason).exit_code == code
    finally:
        signal.signal(number, before)


def test_a_file_asks_as_well_and_is_announced_once(tmp_path):
    said: list[str] = []
    stop = StopRequest(said.append, tmp_path)
    assert not stop.requested()
    (tmp_path / CANCEL).touch()
    assert stop.requested() and stop.requested() and len(said) == 1
    assert stop.ended(Interrupted()) == "cancelled"
    assert stop.ended(OSError("disk full")) == "failed"


def test_alive_is_who_holds_the_lock_and_the_kernel_lets_go_of_it(tmp_path):
    assert not is_alive(tmp_path)
    code = "import sys; from pathlib import Path; from flows.liveness import hold\n"
    code += "hold(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        assert is_alive(tmp_path) and is_alive(tmp_path)
        process.kill()
        process.wait()
    assert not is_alive(tmp_path)
    os.close(hold(tmp_path))
    assert not is_alive(tmp_path)


def run(state: str, **values: object) -> dict:
    return {"id": "demo-1", "state": state, "config": {"name": "demo", "runs_dir": "runs"}, **values}


def test_an_interrupted_run_that_was_taken_up_needs_no_more_care():
    first, other = run("interrupted"), run("interrupted", config={"name": "other"})
    assert interrupted([first, other, run("completed")]) == [other]
    assert interrupted([run("completed"), first]) == [first]
    assert interrupted([run("cancelled"), run("failed")]) == []


def test_the_command_that_continues_can_be_pasted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = ["experiment=demo", "~pipeline.pairs", "data.qa.system=Answer 'yes', or no."]
    record = run("interrupted", overrides=overrides, directory=str(tmp_path))
    quoted = "'~pipeline.pairs' 'data.qa.system=Answer '\"'\"'yes'\"'\"', or no.'"
    assert resume_command(record) == f"ratchet run experiment=demo {quoted}"
    record |= {"command": ["ratchet", "probe", "experiment=demo", "--start", "base"], "directory": "/my data"}
    record["config"] = {"runs_dir": "/other"}  # by RATCHET_RUNS_DIR
    there = "cd '/my data' && ratchet probe runs_dir=/other experiment=demo --start base"
    assert resume_command(record) == there
    record["config"] = {"runs_dir": "/other (1), it's"}
    _, asked = shlex.split(resume_command(record).partition(" && ")[2])[1:3]
    assert compose_values([asked])["runs_dir"] == "/other (1), it's"
