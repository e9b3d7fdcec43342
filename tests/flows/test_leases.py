"""Leases: whoever computes on this host, one step has a device at a time, and a dead holder has none."""

import io
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conf.errors import UserError
from conf.loader import dump
from flows import leases
from flows.cli import main
from flows.compose import compose_run
from flows.leases import DIRECTORY, lease
from stages import gpus
from stages.contract import Hardware, Interrupted
from stages.hardware import cores
from tests.flows.forking import Forker
from tests.flows.standins import OVERRIDES, Project
from tests.flows.test_together import PAIRS, Started, eventually

ALL = Hardware(threads=len(cores()))
ONE = Hardware(threads=1)
_HOLDER = """
import sys
from flows.leases import lease
from stages import gpus
from stages.contract import Hardware
with lease(Hardware(threads=int(sys.argv[1])), sys.argv[2], lambda holder: None):
    print("got it", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leases that only the processes of one test share."""
    monkeypatch.setenv(DIRECTORY, str(tmp_path / "leases"))
    return tmp_path / "leases"


class Holder:
    """Another process that holds a lease, once it has got it, until it is told to end."""

    def __init__(self, hardware: Hardware, name: str) -> None:
        command = [sys.executable, "-c", _HOLDER, str(hardware.threads), name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def has_got_it(self, seconds: float = 60) -> bool:
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def end(self, kill: bool = False) -> None:
        if kill:
            self._process.kill()
        if self._process.returncode is None:
            self._process.communicate()


@pytest.fixture
def holder() -> Iterator[Holder]:
    """One that has all cores."""
    holder = Holder(ALL, "nightly (pid 1)")
    assert holder.has_got_it()
    yield holder
    holder.end()


def impatient(told: list[str], tries: int = 2):
    """Wait a few times, then give up."""

    def on_wait(holder: str) -> None:
        told.append(holder)
        if len(told) >= tries:
            raise Interrupted("enough")

    return on_wait


def test_a_waiter_is_told_for_whom_and_can_give_up(holder):
    told: list[str] = []
    with pytest.raises(Interrupted), lease(ONE, "mine", impatient(told)):
        raise AssertionError("two computed at once")
    assert told == ["nightly (pid 1)"] * 2
    holder.end()
    with lease(ALL, "mine", impatient([])):
        pass


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "done"])
def test_what_a_holder_had_is_free_when_it_is_gone(holder, kill):
    holder.end(kill)
    with lease(ALL, "mine", impatient([])):
        pass


@pytest.mark.skipif(len(cores()) < 2, reason="takes two cores")
def test_steps_of_one_thread_run_side_by_side():
    others = [Holder(ONE, f"cell {number}") for number in range(len(cores()))]
    assert all(other.has_got_it() for other in others)
    told: list[str] = []
    with pytest.raises(Interrupted), lease(ONE, "one too many", impatient(told)):
        raise AssertionError("more steps than cores")
    assert {name for name in told[0].split(", ")} == {f"cell {number}" for number in range(len(cores()))}
    others[0].end()
    with lease(ONE, "mine", impatient([])):
        pass
    for other in others[1:]:
        other.end()


@pytest.mark.skipif(len(cores()) < 2, reason="takes two cores")
def test_a_step_of_all_cores_is_not_passed_by():
    """It keeps what it has got: small ones that come later wait behind it."""
    small = Holder(ONE, "small")
    assert small.has_got_it()
    wide = Holder(ALL, "wide")
    eventually(lambda: any("wide" in path.read_text() for path in Path(os.environ[DIRECTORY]).glob("core-*")))
    later = Holder(ONE, "later")
    assert not later.has_got_it(2) and not wide.has_got_it(0)  # it had the time to take a core, if it could
    small.end()
    assert wide.has_got_it() and not later.has_got_it(0)
    wide.end()
    assert later.has_got_it()
    later.end()


def test_another_device_is_not_waited_for(holder):
    with lease(Hardware(device="mps"), "mine", impatient([])):
        pass


def test_everybody_on_the_host_may_write_there(folder):
    with lease(ONE, "mine", impatient([])):
        pass
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o666}


def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(DIRECTORY, str(tmp_path / "file" / "leases"))
    with pytest.raises(
        UserError, match=r"RATCHET_LEASES_DIR: .*file/leases cannot be used .*set RATCHET_LEASES_DIR to"
    ):
        lease(ONE, "mine", impatient([])).__enter__()


@pytest.mark.parametrize(
    "arguments", [["generate", "latest", "hi"], ["export", "latest", "--out", "out"]], ids=["generate", "export"]
)
def test_a_command_that_computes_waits_for_the_device_and_says_so_once(holder, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RATCHET_RUNS_DIR", raising=False)
    Project(tmp_path, dump(compose_run(OVERRIDES).sections)).run(until="reinforce_audit")  # leaves the base
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)  # to take from `capsys` what another thread is writing may lose it
    with ThreadPoolExecutor() as threads:
        command = threads.submit(main, arguments)
        try:
            eventually(lambda: "waiting for" in said.getvalue() or command.done())
            time.sleep(1)  # it looks again every half second
            assert not command.done() and not (tmp_path / "out").exists()
        finally:
            holder.end()
        assert command.result() == 0
    assert said.getvalue() == "waiting for nightly (pid 1), which computes on this host\n"
    folder = Path(os.environ[DIRECTORY])
    assert not any(path.read_text() for path in folder.iterdir())


def test_an_export_to_a_place_that_is_taken_does_not_wait_to_say_so(holder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RATCHET_RUNS_DIR", raising=False)
    Project(tmp_path, dump(compose_run(OVERRIDES).sections)).run(until="reinforce_audit")
    assert main(["export", "latest", "--out", "."]) == 2
    assert "--out: . is there already and not an empty directory" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_waits_for_the_device_says_so_and_can_be_interrupted(forker: Forker, tmp_path):
    """The forker has leases of its own, which all its runs share: a run that is halted at work keeps the device."""
    arguments = ["run", *PAIRS]
    one = Started(forker, tmp_path / "one", "holder", [*arguments, f"runs_dir={tmp_path / 'one'}"])
    one.halt_at_work()
    other = Started(forker, tmp_path / "other", "waiter", [*arguments, f"runs_dir={tmp_path / 'other'}"])
    eventually(lambda: f"pairs: waiting for {one.record['id']} (pid {one.handle.pid} on " in other.text)
    assert "which computes on this host's CPU" in other.text
    assert other.record["steps"]["pairs"]["state"] == "waiting"
    other.handle.kill(signal.SIGTERM)
    assert other.handle.wait() == 143, other.text
    assert other.record["steps"]["pairs"]["state"] == "skipped"
    again = Started(forker, tmp_path / "other", "again", [*arguments, f"runs_dir={tmp_path / 'other'}"])
    one.handle.kill(signal.SIGKILL)
    assert again.handle.wait() == 0, again.text


def test_a_process_keeps_its_gpu_and_a_step_of_several_processes_is_given_all_it_needs(monkeypatch):
    """NVML stands for two GPUs, which the tests' machines do not have."""
    monkeypatch.setattr(gpus, "visible", lambda: {"0": "GPU-a", "1": "GPU-b"})
    monkeypatch.setattr(leases, "_ours", {})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    one, two = Hardware(device="cuda"), Hardware(device="cuda", num_processes=2)
    with lease(one, "a", str):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    with lease(two, "a", str):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    with lease(one, "a", str):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
