"""A training stage in several processes: torchrun starts them, and what they say is passed on to the flow.

Every process (see `stages.rank_main`) holds a socket to this one. It closes when either of them dies, so that no rank
outlives the flow, and the flow knows which rank was the first to go.
"""

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

from conf.errors import DiskError
from stages.contract import StageContext, StageResult
from stages.handover import Job, write_job
from stages.hardware import threads_of_one
from stages.rank_main import DONE, STOP

ENTRY = "stages.rank_main"
"""The module that torchrun starts."""

FOLDER = "ranks"
"""Where in a stage's directory the job and the ranks' logs are."""

_TICK = 0.2
"""Seconds between two looks at whether the stage is asked to end."""

_LOCAL = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
"""Gloo would look for this machine under its name, which need not resolve."""

_LAST_LINES = 12
_OURS = ("conf.", "rewards.", "stages.")
"""Packages whose errors speak for themselves."""


class RankError(RuntimeError):
    """One of the processes failed, or died; the message says which, why, and has the last lines of its log."""


@dataclass
class _Rank:
    """What is known of one process.

    Attributes:
        error: Why it ended, if it ended too early and said so.
        finished: Whether it has nothing more to do.
    """

    number: int = -1
    pid: int = -1
    error: Exception | None = None
    finished: bool = False


def run_ranks(stage: str, settings: Any, context: StageContext) -> StageResult:
    """Run a training stage in `context.hardware.num_processes` processes.

    Raises:
        RankError: One of them failed in a way that is nobody's mistake, or died.
        Interrupted: The stage was asked to end early.
        Exception: What the stage raised.
    """
    folder = context.out_dir / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    job = folder / "job.json"
    job.write_text(json.dumps(write_job(Job(stage=stage, settings=settings, context=context)), indent=1) + "\n")
    with ExitStack() as stack:
        listener, address = stack.enter_context(_listening())
        launcher = stack.enter_context(_launched(job, address, context))
        group = _Group(context, listener)
        stack.callback(group.close)
        while launcher.poll() is None:
            group.serve()
        return group.outcome(launcher.returncode, folder)


@contextmanager
def _listening() -> Iterator[tuple[socket, str]]:
    """A socket for processes of this user alone; its path must be short."""
    with tempfile.TemporaryDirectory(prefix="ratchet-", dir="/tmp") as folder, socket(AF_UNIX) as listener:
        address = f"{folder}/flow"
        listener.bind(address)
        listener.listen()
        yield listener, address


@contextmanager
def _launched(job: Path, address: str, context: StageContext) -> Iterator[subprocess.Popen[bytes]]:
    """Torchrun, in a session of its own: Ctrl-C is for the flow, which lets the ranks finish their step."""
    options = ["--standalone", "--nnodes=1", f"--nproc-per-node={context.hardware.num_processes}"]
    options += ["--local-addr=127.0.0.1", "--max-restarts=0", f"--log-dir={job.parent / 'torchrun'}"]
    command = [sys.executable, "-P", "-m", "torch.distributed.run", *options, "-m", ENTRY, str(job), address]
    environment = {**_LOCAL, **os.environ, "PYTHONSAFEPATH": "1"}
    environment["OMP_NUM_THREADS"] = str(threads_of_one(context.hardware))
    with (job.parent / "torchrun.log").open("wb") as log:
        launcher = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield launcher
    finally:
        if launcher.poll() is None:
            launcher.terminate()  # it ends the ranks
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(40)
        launcher.kill()  # and with it whatever rank is left
        launcher.wait()


class _Group:
    """The ranks as the flow sees them.

    Args:
        context: Takes what rank 0 says; asked whether the stage should end early.
        listener: Where ranks come in.
    """

    def __init__(self, context: StageContext, listener: socket) -> None:
        self._context, self._listener = context, listener
        self._ranks: dict[Connection, _Rank] = {}
        self._ended: list[_Rank] = []  # too early, in this order
        self._stopping = False
        self._result: StageResult | None = None

    def close(self) -> None:
        """Let go of the ranks; those that still run end themselves."""
        for connection in self._ranks:
            connection.close()

    def serve(self, patience: float = _TICK) -> bool:
        """Deal with what the ranks say, or wait for it; returns whether there was anything."""
        if not self._stopping and self._context.stopping():
            self._stopping = True
            for connection in self._ranks:
                _send(connection, STOP)
        ready = wait([self._listener, *self._ranks], patience)
        heard = [(each, _receive(each)) for each in ready if isinstance(each, Connection)]
        for connection, message in sorted(heard, key=lambda item: item[1] is not None):  # a death explains the rest
            if message is None:
                self._lost(connection)
            else:
                self._hear(self._ranks[connection], message)
                _send(connection, DONE)
        if self._listener in ready:
            self._admit()
        return bool(ready)

    def outcome(self, exit_code: int, folder: Path) -> StageResult:
        """What has come of it, after all ranks have ended."""
        while self.serve(0):
            pass
        for rank in self._ended:
            if rank.error is not None and _is_ours(rank.error):
                raise rank.error
        if self._ended:
            raise RankError(self._report(self._ended[0], folder)) from self._ended[0].error
        if exit_code or self._result is None:
            log = folder / "torchrun.log"
            raise RankError(f"torchrun ended with exit code {exit_code}; the end of {log}:\n{_end_of(log)}")
        return self._result

    def _admit(self) -> None:
        connection = Connection(self._listener.accept()[0].detach())
        self._ranks[connection] = _Rank()
        if self._stopping:
            _send(connection, STOP)

    def _hear(self, rank: _Rank, message: tuple[Any, ...]) -> None:
        match message:
            case ("begun", number, pid):
                rank.number, rank.pid = number, pid
            case ("failed", *what):
                rank.error = _rebuilt(*what)
                self._ended.append(rank)
            case ("finished", result):
                rank.finished = True
                self._result = result or self._result
            case (told, *arguments):
                getattr(self._context, told)(*arguments)

    def _lost(self, connection: Connection) -> None:
        rank = self._ranks.pop(connection)
        connection.close()
        if not rank.finished and rank.error is None:
            self._ended.append(rank)

    def _report(self, rank: _Rank, folder: Path) -> str:
        log = folder / f"rank-{rank.number}.log"
        how = _death(rank.pid, folder / "torchrun.log") if rank.error is None else f"failed: {rank.error}"
        processes = self._context.hardware.num_processes
        return f"rank {rank.number} of {processes} {how}; the end of {log}:\n{_end_of(log)}"


def _receive(connection: Connection) -> tuple[Any, ...] | None:
    """What a rank says; None when it is gone."""
    try:
        message: tuple[Any, ...] = connection.recv()
    except (EOFError, OSError):
        return None
    return message


def _send(connection: Connection, message: str) -> None:
    with suppress(OSError):  # it is gone, which is noticed when it is listened to
        connection.send(message)


def _rebuilt(module: str, name: str, text: str, full: bool | None) -> Exception:
    """The error of a rank; one of ours as it was, any other as text."""
    if not module.startswith(_OURS):
        return RankError(f"{name}: {text}")
    if name == DiskError.__name__:
        return DiskError(text, full=bool(full))
    made: Exception = getattr(importlib.import_module(module), name)(text)
    return made


def _is_ours(error: Exception) -> bool:
    return type(error).__module__.startswith(_OURS)


def _death(pid: int, log: Path) -> str:
    """How a process ended that did not say why, by torchrun's report."""
    found = re.search(rf"exitcode\s*:\s*(-?\d+) \(pid: {pid}\)", log.read_text(errors="replace"))
    code = int(found[1]) if found else 0
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else "ended without a word"


def _end_of(log: Path) -> str:
    """The last lines of a log."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return "\n".join(text.splitlines()[-_LAST_LINES:]) or "(it is empty)"
