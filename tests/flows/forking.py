"""Runs in processes of their own that can be killed, without paying the imports for each of them.

One server process imports everything once, does no work itself, and forks a child per run.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

_PRELOAD = [
    "flows.cli",
    "flows.commands.run",
    "flows.posttrain",
    "flows.prefect_server",
    "flows.schedules.scheduled",
    "prefect.flow_engine",
    "mlflow.store.tracking.sqlalchemy_store",
    "alembic.command",
    *(f"stages.{name}" for name in ("audit", "sft", "pairs", "preference", "probe", "reinforce", "evaluate")),
]


class Handle:
    """One run.

    Args:
        process: Its process.
        begun: Closed at the other end once our code has begun there.
    """

    def __init__(self, process: ForkServerProcess, begun: Connection) -> None:
        self._process, self._begun = process, begun

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process.pid is not None
        return self._process.pid

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.exitcode is None

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send it a signal, unless it is over; not before it has begun, when Ctrl-C would be Python's to answer."""
        self._begun.poll(60)
        if self.alive():
            os.kill(self.pid, number)

    def wait(self, timeout: float = 300) -> int:
        """Its exit code (-9 when SIGKILL ended it); a run that does not end in time is killed, and a failed test."""
        self._process.join(timeout)
        if self.alive():
            self.kill()
            raise TimeoutError(f"process {self.pid} still ran after {timeout} s")
        assert self._process.exitcode is not None
        return self._process.exitcode


class Forker:
    """Starts runs; use one per session.

    Args:
        environment: Variables that the server, and so all runs, have beside those of this process.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOAD)
        self._handles: list[Handle] = []
        with patch.dict(os.environ, environment):
            forkserver.ensure_running()

    def start(self, arguments: list[str], log: Path) -> Handle:
        """Run `ratchet <arguments>`; what it prints goes to the end of `log`."""
        return self._start(_run, arguments, log)

    def start_flow_run(self, id: UUID, home: Path, log: Path) -> Handle:
        """Do what a worker's process does for a run of a deployment; `home` is Prefect's."""
        return self._start(_run_flow, id, home, log)

    def _start(self, target: Callable[..., None], *arguments: Any) -> Handle:
        begun, begin = self._context.Pipe(duplex=False)
        process = self._context.Process(target=target, args=(begin, *arguments))
        process.start()
        begin.close()
        self._handles.append(Handle(process, begun))
        return self._handles[-1]

    def close(self) -> None:
        """Kill what still runs."""
        for handle in self._handles:
            handle.kill()
            handle.wait()


def _run(begin: Connection, arguments: list[str], log: Path) -> None:
    """In the child: the command line, as a process of its own would run it."""
    _print_to(log)
    from flows.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
    try:
        begin.close()
        code = main(arguments)
    except KeyboardInterrupt:  # just before the command line looks for it, or just after
        code = 128 + signal.SIGINT
    sys.exit(code)


def _run_flow(begin: Connection, id: UUID, home: Path, log: Path) -> None:
    """In the child: Prefect's engine, as a worker would start it."""
    _print_to(log)
    begin.close()
    from prefect.engine import handle_engine_signals
    from prefect.flow_engine import load_flow_run, run_flow
    from prefect.settings import PREFECT_HOME, temporary_settings

    from flows.schedules.scheduled import scheduled

    with temporary_settings({PREFECT_HOME: home}), handle_engine_signals(id):
        run_flow(scheduled, flow_run=load_flow_run(id))


def _print_to(log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
