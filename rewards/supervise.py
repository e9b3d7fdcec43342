"""Runs one program under limits and watches it to its end; the inner half of the sandbox.

Its process is the first of the sandbox's namespaces or, where there are none, the parent that every process of the
program falls back to. It does nothing else and has one thread.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import time

from rewards.namespaces import drop_capabilities
from rewards.processes import descendants, memory, processes, threads, user

TYPE_CHECKING = False  # `typing` alone would take as long to import as all the rest
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

Owner = tuple[int, int] | None
"""User and group to run as, or None to stay what this process is."""

_TICK = 0.1
"""Seconds between two looks at the memory in use."""


def supervise(spec: Mapping[str, Any], scratch: str, owner: Owner, isolated: bool) -> dict[str, Any]:
    """Write the files, run the program, wait for its end or for what ends it.

    Args:
        spec: What `rewards.sandbox` sends.
        scratch: The scratch directory; it exists and belongs to the owner.
        owner: Whom to run as.
        isolated: Whether this process is the first of its namespaces.

    Returns:
        `status` (exit status, or minus a signal's number; None when ended from here), `ended` (`timeout`, `output`,
        `memory` or None), `stdout`, `stderr` (bytes), `seconds`.

    Raises:
        OSError: The program could not be started.
    """
    _write_files(scratch, spec["files"], owner)
    started = time.monotonic()
    child, outputs = _start(spec, scratch, owner, isolated)
    try:
        status, ended = _watch(child, outputs, spec["limits"], isolated)
    finally:
        if not isolated:
            _kill_all(owner)
    return {
        "status": status,
        "ended": ended,
        "stdout": bytes(outputs.texts[0]),
        "stderr": bytes(outputs.texts[1]),
        "seconds": time.monotonic() - started,
    }


class _Outputs:
    """Standard output and error of the program, read as they come, up to a limit together."""

    def __init__(self, ends: tuple[int, int], limit: int) -> None:
        self.ends, self.limit = ends, limit
        self.texts = (bytearray(), bytearray())
        for end in ends:
            os.set_blocking(end, False)

    def read(self) -> bool:
        """Take what is there; False when it is more than the limit."""
        for end, text in zip(self.ends, self.texts, strict=True):
            try:
                while part := os.read(end, 65536):
                    text += part
                    if sum(map(len, self.texts)) > self.limit:
                        return False
            except BlockingIOError:
                pass
        return True


def _watch(child: int, outputs: _Outputs, limits: Mapping[str, Any], isolated: bool) -> tuple[int | None, str | None]:
    end = time.monotonic() + limits["timeout"]
    poll = select.poll()
    exited = os.pidfd_open(child) if hasattr(os, "pidfd_open") else None
    open_ends = {*outputs.ends, *([] if exited is None else [exited])}
    for descriptor in open_ends:
        poll.register(descriptor, select.POLLIN)
    look = 0.0
    while True:
        for descriptor, event in poll.poll(_TICK * 1000):
            if descriptor in outputs.ends and not event & select.POLLIN:
                poll.unregister(descriptor)
        status = _reap(child)
        if not outputs.read():
            return None, "output"
        if status is not None:
            return status, None
        now = time.monotonic()
        if now > end:
            return None, "timeout"
        if now > look:
            look = now + _TICK
            if memory(isolated) > limits["memory_mb"] * 2**20:
                return None, "memory"


def _reap(child: int) -> int | None:
    """Collect ended processes, as the first process of a system must; the program's exit status once it has one."""
    status = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                status = os.waitstatus_to_exitcode(ended[1])
    except ChildProcessError:
        pass
    return status


def _start(spec: Mapping[str, Any], scratch: str, owner: Owner, isolated: bool) -> tuple[int, _Outputs]:
    (out, out_end), (err, err_end), (failure, failure_end) = os.pipe(), os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _connect(spec["stdin"], out_end, err_end)
            os.chdir(scratch)
            _limit(spec["limits"], owner, isolated)
            os.execve(spec["command"][0], spec["command"], spec["environment"])
        except BaseException as error:
            os.write(failure_end, str(error).encode())
        os._exit(127)
    for end in (out_end, err_end, failure_end):
        os.close(end)
    if problem := os.read(failure, 4096):
        raise OSError(f"{spec['command'][0]} could not be started: {problem.decode(errors='replace')}")
    os.close(failure)
    return child, _Outputs((out, err), spec["limits"]["output_kb"] * 1024)


def _connect(text: bytes, out: int, err: int) -> None:
    """Standard input from a file in memory, which needs nobody to feed it; output and error to the pipes."""
    source = os.memfd_create("stdin")
    os.write(source, text)
    os.lseek(source, 0, os.SEEK_SET)
    for number, descriptor in enumerate((source, out, err)):
        os.dup2(descriptor, number)


def _limit(limits: Mapping[str, Any], owner: Owner, isolated: bool) -> None:
    """Lower what this process may use and do, for good."""
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):  # Python ignores two of them; it is inherited
        signal.signal(number, signal.SIG_DFL)
    if os.geteuid() == 0 or isolated:
        drop_capabilities()
    if owner is not None:
        os.setgroups([])
        os.setresgid(owner[1], owner[1], owner[1])
        os.setresuid(owner[0], owner[0], owner[0])
    bounds = {
        resource.RLIMIT_CPU: limits["cpu_seconds"],
        resource.RLIMIT_AS: limits["memory_mb"] * 2**20,
        resource.RLIMIT_FSIZE: limits["file_mb"] * 2**20,
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: limits["processes"] + _others(isolated, owner),
    }
    for kind, bound in bounds.items():
        _, hard = resource.getrlimit(kind)
        most = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        # A second later than SIGXCPU, which says why, comes SIGKILL, which cannot be ignored.
        later = most + 1 if kind == resource.RLIMIT_CPU and hard == resource.RLIM_INFINITY else most
        resource.setrlimit(kind, (most, later))


def _others(isolated: bool, owner: Owner) -> int:
    """How many of the user's processes the kernel counts beside the program's own."""
    if owner is not None:
        return 0
    if isolated:
        return 2  # the launcher and this process's parent
    mine = os.getuid()
    return sum(threads(process) for process in processes() if user(process) == mine) - 1


def _kill_all(owner: Owner) -> None:
    """Without namespaces: kill what the program left. A user of its own makes that one step nobody can outrun."""
    if owner is not None:
        killer = os.fork()
        if killer == 0:
            os.setresuid(owner[0], owner[0], owner[0])
            _kill(-1)
            os._exit(0)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for process in [] if owner is not None else descendants():
            _kill(process)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.005)
        except ChildProcessError:
            return


def _kill(process: int) -> None:
    try:  # noqa: SIM105 (contextlib takes too long to import)
        os.kill(process, signal.SIGKILL)
    except OSError:
        pass


def _write_files(scratch: str, files: Mapping[str, bytes], owner: Owner) -> None:
    for name, content in files.items():
        with open(f"{scratch}/{name}", "wb") as file:
            file.write(content)
        if owner is not None:
            os.chown(f"{scratch}/{name}", *owner)
