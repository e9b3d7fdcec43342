"""`ratchet run --detach`: a run that goes on when the terminal is gone."""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from flows.record import Record
from flows.workspace import Workspace

OUTPUT = "output.txt"
"""In the run's folder: what a detached run would have written to the terminal."""


def detach(workspace: Workspace, overrides: Sequence[str], command: Sequence[str], as_json: bool) -> int:
    """Start a run that was checked in a session of its own, and say how to follow it.

    The run exists, and is alive, from here on: the new process inherits the lock that says so.

    Returns:
        The exit code, 0.
    """
    record = Record(workspace.config, workspace.runs_dir, overrides, command)
    record.begin()
    assert record.lock is not None
    os.set_inheritable(record.lock, True)
    output = record.folder / OUTPUT
    pid = _spawn([sys.executable, "-P", "-m", "flows", *command[1:], "--run-id", record.id], output)
    record.update(pid=pid)
    record.release()
    if as_json:
        print(json.dumps({"run": record.id, "pid": pid, "output": str(output)}))
    else:
        print(_how_to_follow(record.id, pid, workspace.runs_dir, output))
    return 0


def _spawn(command: list[str], output: Path) -> int:
    """Start a process that neither the terminal nor we are attached to (`Popen` would warn that it still runs)."""
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(command[0], command, os.environ, file_actions=files, setsid=True)


def _how_to_follow(run_id: str, pid: int, runs_dir: Path, output: Path) -> str:
    default = Path(os.environ.get("RATCHET_RUNS_DIR", "runs")).resolve()
    where = "" if runs_dir == default else f" --runs-dir {shlex.quote(str(runs_dir))}"
    lines = {
        f"ratchet status{where}": "how far it is",
        f"ratchet cancel {run_id}{where}": "ends it; the same command continues",
        f"tail -f {shlex.quote(str(output))}": "what it says",
    }
    width = max(map(len, lines))
    followed = [f"  {command:{width}}  {meaning}" for command, meaning in lines.items()]
    return "\n".join([f"{run_id}: runs in the background (pid {pid})", *followed])
