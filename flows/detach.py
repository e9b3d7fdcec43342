"""`ratchet run --detach`: a run that goes on when the terminal is gone."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from conf.run import RunConfig
from flows.record import Record
from flows.workspace import Workspace

OUTPUT = "output.txt"
"""In the run's folder: what a detached run would have written to the terminal."""


def detach(config: RunConfig, overrides: Sequence[str], command: Sequence[str], as_json: bool) -> int:
    """Check the configuration, start the run in a session of its own, and say how to follow it.

    The run exists, and is alive, from here on: the new process inherits the lock that says so.

    Returns:
        The exit code, 0.

    Raises:
        UserError: What is wrong with the configuration.
    """
    workspace = Workspace(config)
    workspace.check()
    record = Record(config, workspace.runs_dir, overrides, command)
    record.begin()
    assert record.lock is not None
    with (record.folder / OUTPUT).open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows", *command[1:], "--run-id", record.id],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[record.lock],
        )
    record.update(pid=process.pid)
    record.release()
    output_path = record.folder / OUTPUT
    if as_json:
        print(json.dumps({"run": record.id, "pid": process.pid, "output": str(output_path)}))
    else:
        print(_how_to_follow(record.id, process.pid, workspace.runs_dir, output_path))
    return 0


def _how_to_follow(run_id: str, pid: int, runs_dir: Path, output: Path) -> str:
    default = Path(os.environ.get("RATCHET_RUNS_DIR", "runs")).resolve()
    where = "" if runs_dir == default else f" --runs-dir {runs_dir}"
    lines = {
        f"ratchet status{where}": "how far it is",
        f"ratchet cancel {run_id}{where}": "ends it; the same command continues",
        f"tail -f {output}": "what it says",
    }
    width = max(map(len, lines))
    return "\n".join(
        [f"{run_id}: runs in the background (pid {pid})", *(f"  {k:{width}}  {v}" for k, v in lines.items())]
    )
