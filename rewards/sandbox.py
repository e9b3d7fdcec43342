"""Runs a program that nobody vouches for: a model's completion, or a program that executes one.

With Linux namespaces (see `rewards.namespaces`) the program sees no network, no processes but its own and no files but
the system's, and writes only to a scratch directory in memory; when it ends, everything it started ends. Where the
kernel does not allow them, limits remain: `isolation()` says which it is, after trying.

Every run has limits on time, processor time, memory, processes, files and output, and an empty environment. Safe to
call from any thread, any number at once: the launcher (`rewards.launch`) is a process of its own.
"""

import functools
import marshal
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rewards.contract import RewardError
from rewards.namespaces import SCRATCH
from rewards.processes import processes
from rewards.removal import remove

_GRACE = 30.0
"""Seconds a launcher may take beyond the program's own before it is given up."""
_LAUNCH = "import sys; sys.path.append(sys.argv[1]); from rewards.launch import main; main()"
_lock = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a program may use; what it exceeds ends it, or fails inside it, as the operating system does that.

    Attributes:
        timeout: Seconds by the clock.
        cpu_seconds: Seconds of processor time, for each process.
        memory_mb: Address space of each process, and resident memory of all together (looked at ten times a second,
            where /proc can be mounted).
        file_mb: Size of a file; with namespaces of all files together.
        processes: Processes and threads at once.
        open_files: File descriptors of each process.
        output_kb: Standard output and error together.
    """

    timeout: float = 10.0
    cpu_seconds: int = 10
    memory_mb: int = 1024
    file_mb: int = 64
    processes: int = 32
    open_files: int = 256
    output_kb: int = 1024


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to run.

    Attributes:
        command: Absolute path of the program, and its arguments; `{scratch}` in them is the scratch directory.
        files: Content of the files in the scratch directory, by plain name.
        stdin: What the program reads from standard input.
        visible: Files and directories it may read beside the system's and Python's.
    """

    command: Sequence[str]
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""
    visible: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a program.

    Attributes:
        status: Exit status, or minus the number of the signal that killed it; None when the sandbox ended it.
        ended: Why the sandbox ended it: `timeout`, `output` or `memory`; `sandbox` when it ended the sandbox; or None.
        stdout: Standard output as text.
        stderr: Standard error as text.
        seconds: How long it ran.
    """

    status: int | None
    ended: str | None
    stdout: str
    stderr: str
    seconds: float


@dataclass(frozen=True)
class Isolation:
    """What keeps a program apart from the host: namespaces or not, and that in words."""

    namespaces: bool
    description: str


class SandboxError(RewardError):
    """The sandbox itself failed, so nothing can be said of the program."""


def isolation() -> Isolation:
    """Which isolation is in force on this machine: found out by running a program, once per process."""
    with _lock:
        return _isolation()


def run(program: Program, limits: Limits, within: Isolation | None = None) -> Outcome:
    """Run a program to its end, by itself or by a limit; afterwards none of its processes and files are left.

    Args:
        program: What to run.
        limits: What it may use.
        within: The isolation to use; what `isolation()` found when None.

    Raises:
        SandboxError: The program could not be started, or the sandbox failed.
    """
    namespaces = (within or isolation()).namespaces
    scratch = SCRATCH if namespaces else tempfile.mkdtemp(prefix="ratchet-sandbox-")
    try:
        return _outcome(_launch(_spec(program, limits, scratch, namespaces), limits.timeout + _GRACE))
    finally:
        if not namespaces and os.path.isdir(scratch):
            remove(scratch)


@functools.cache
def _isolation() -> Isolation:
    tried = Isolation(True, "namespaces: no network, private processes, no files but the system's (read-only)")
    try:
        _user_inside(tried)
        return tried
    except SandboxError as error:
        problem = str(error)
    try:
        who = "the same user" if _user_inside(Isolation(False, "")) == os.geteuid() else "another user"
    except SandboxError as error:
        who = f"another user, who cannot execute Python ({error})"
    return Isolation(
        False, f"limits only, as {who}: network and readable host files can be reached (no namespaces: {problem})"
    )


def _user_inside(within: Isolation) -> int:
    outcome = run(
        Program(command=[sys.executable, "-I", "-S", "-c", "import os; print(os.getuid())"]), Limits(), within
    )
    if outcome.status != 0:
        raise SandboxError(f"its test ended with {outcome.ended or outcome.status}: {outcome.stderr.strip()}")
    return int(outcome.stdout)


def _spec(program: Program, limits: Limits, scratch: str, namespaces: bool) -> dict[str, Any]:
    path = f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin"
    return {
        "isolated": namespaces,
        "scratch": scratch,
        "command": [argument.replace("{scratch}", scratch) for argument in program.command],
        "files": dict(program.files),
        "stdin": program.stdin,
        "visible": [*_hops(sys.executable), sys.prefix, sys.base_prefix, *_hops(program.command[0]), *program.visible],
        # One thread for numeric libraries and one order of sets: a reward gives the same value every time.
        "environment": {
            "PATH": path,
            "HOME": scratch,
            "TMPDIR": scratch,
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
        },
        "limits": asdict(limits),
    }


def _hops(path: str) -> list[str]:
    """A path, and what it leads to when it is a symbolic link to a link to a file."""
    found = [path]
    while os.path.islink(found[-1]) and len(found) < 40:
        found.append(os.path.normpath(os.path.join(os.path.dirname(found[-1]), os.readlink(found[-1]))))
    return found


def _launch(spec: dict[str, Any], timeout: float) -> dict[str, Any]:
    home = str(Path(__file__).resolve().parent.parent)
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LAUNCH, home],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        cwd="/",
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(marshal.dumps(spec), timeout=timeout)
        except BaseException as error:
            out, err = _stop(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
    try:
        report: dict[str, Any] = marshal.loads(out)
    except (ValueError, EOFError, TypeError):
        if process.returncode < 0 and not spec["isolated"]:
            _kill_strays(spec["scratch"])
            return {"status": None, "ended": "sandbox", "stdout": b"", "stderr": b"", "seconds": timeout}
        said = err.decode(errors="replace").strip().rpartition("\n")[2]
        raise SandboxError(f"the sandbox failed: {said or f'it ended with status {process.returncode}'}") from None
    if "error" in report:
        raise SandboxError(f"the sandbox failed: {report['error']}")
    return report


def _stop(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """End a launcher: asked first, so that it can kill what the program started."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


def _kill_strays(scratch: str) -> None:
    """Kill what a program left that has killed its launcher, which only limits and the same user allow."""
    for process in processes():
        try:
            with open(f"/proc/{process}/environ", "rb") as environment:
                if f"HOME={scratch}".encode() in environment.read().split(b"\0"):
                    os.kill(process, signal.SIGKILL)
        except OSError:
            pass  # another user's, or gone


def _outcome(report: dict[str, Any]) -> Outcome:
    out, err = (report[name].decode(errors="replace") for name in ("stdout", "stderr"))
    return Outcome(status=report["status"], ended=report["ended"], stdout=out, stderr=err, seconds=report["seconds"])
