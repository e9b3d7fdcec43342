"""The parent's end of one worker process: started, written to and read without ever waiting for it, and killed."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

START_LIMIT = 60.0
"""Seconds that a worker may take to import its reward."""


class WorkerDied(Exception):
    """The process is gone, or does not answer as a worker; the message says why."""


class Worker:
    """A process that runs `rewards.worker_main`.

    It leads a process group of its own, so that what a reward starts ends with it; and it ends by itself when this
    process does, because its pipe closes.

    Args:
        opening: The first line: which reward it serves.

    Raises:
        WorkerDied: It cannot be started.

    Attributes:
        task: Which samples it is judging; None when it is loading or has nothing to do.
        ready: Whether the reward is loaded.
    """

    def __init__(self, opening: bytes) -> None:
        self.task: Sequence[int] | None = None
        self.ready = False
        self._unsent = memoryview(opening)
        self._received = bytearray()
        self._requests = 0
        self._limit = START_LIMIT
        self._deadline = time.monotonic() + self._limit
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rewards.worker_main"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                env=_environment(),
            )
        except OSError as error:
            raise WorkerDied(f"the worker process cannot be started: {error.strerror or error}") from None
        assert self._process.stdin and self._process.stdout
        self._in, self._out = self._process.stdin, self._process.stdout
        for pipe in (self._in, self._out):
            os.set_blocking(pipe.fileno(), False)

    @property
    def alive(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    @property
    def deadline(self) -> float:
        """When, by `time.monotonic`, what it is doing must be done."""
        return self._deadline

    def ask(self, task: Sequence[int], samples: Sequence[bytes], timeout: float) -> None:
        """Begin to send a request.

        Args:
            task: What to remember the request by.
            samples: The samples as JSON.
            timeout: Seconds until it must be answered.
        """
        self.task = task
        self._requests += 1
        self._unsent = memoryview(b'{"id": %d, "samples": [%s]}\n' % (self._requests, b", ".join(samples)))
        self._limit = timeout
        self._deadline = time.monotonic() + timeout

    def register(self, poll: select.poll) -> None:
        """Have `poll` wait for what this worker waits for."""
        poll.register(self._out, select.POLLIN)
        if self._unsent:
            poll.register(self._in, select.POLLOUT)

    def answer(self) -> dict[str, Any] | None:
        """Move what can be moved through the pipes; the answer once it is complete.

        Raises:
            WorkerDied: There will be none: the process ended, took too long or wrote something else.
        """
        try:
            if self._unsent:
                self._unsent = self._unsent[self._in.write(self._unsent) or 0 :]
            while chunk := self._out.read(1 << 20):
                self._received += chunk
        except BrokenPipeError:
            chunk = b""
        if self._received.endswith(b"\n"):
            line, self._received = bytes(self._received), bytearray()
            return self._parsed(line)
        if chunk == b"":
            raise WorkerDied(self._death())
        if time.monotonic() >= self._deadline:
            raise WorkerDied(f"timed out after {self._limit:g} s")
        return None

    def kill(self) -> None:
        """End the process and all it has started."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._in, self._out):
            pipe.close()

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(line)
            if answer.get("id", 0) != self._requests:
                raise ValueError
        except (ValueError, AttributeError):
            raise WorkerDied("the worker process wrote something that is no answer") from None
        return answer  # type: ignore[no-any-return]

    def _death(self) -> str:
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "the worker process closed its connection"
        if status >= 0:
            return f"the worker process exited with status {status}"
        hint = " (out of memory, or killed by somebody)" if status == -signal.SIGKILL else ""
        return f"the worker process was killed by {signal.Signals(-status).name}{hint}"


def _environment() -> dict[str, str]:
    """The same modules as here; and sets in the same order in every worker, so that they give the same values."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), "PYTHONHASHSEED": "0"}
    if "PYTHONPATH" in os.environ:
        environment["RATCHET_PYTHONPATH"] = os.environ["PYTHONPATH"]  # the worker puts it back
    return environment
