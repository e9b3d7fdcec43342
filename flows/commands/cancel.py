"""`ratchet cancel RUN`: ask a run that is alive, in whatever terminal, to keep what it has done and end."""

import argparse
import time
from pathlib import Path
from typing import Any

from conf.errors import UserError
from flows.liveness import is_alive
from flows.orphans import resume_command
from flows.references import find_pipeline
from flows.stop import CANCEL

_POLL_SECONDS = 0.2


def main(arguments: argparse.Namespace) -> int:
    """Leave the request, and with `--wait` wait until the run has ended; returns the exit code.

    Raises:
        UserError: There is no such run, or it is not alive.
    """
    runs_dir = Path(arguments.runs_dir)
    run_id = _alive(runs_dir, arguments.run)["id"]
    folder = runs_dir / "pipelines" / run_id
    (folder / CANCEL).touch()
    print(f"{run_id}: asked to end; it keeps what it has done first, and the same command continues", flush=True)
    if arguments.wait:
        while is_alive(folder):
            time.sleep(_POLL_SECONDS)
        print(f"{run_id}: {_found(runs_dir, run_id)['state']}")
    return 0


def _alive(runs_dir: Path, text: str) -> dict[str, Any]:
    record = _found(runs_dir, text)
    if record["state"] == "interrupted":
        raise UserError(f"{record['id']}: is interrupted, its process is gone; `{resume_command(record)}` continues it")
    if record["state"] != "running":
        raise UserError(f"{record['id']}: does not run, it is {record['state']}; `ratchet status` lists what runs")
    return record


def _found(runs_dir: Path, text: str) -> dict[str, Any]:
    record = find_pipeline(runs_dir, text)
    if record is None:
        raise UserError(f"{text}: no pipeline run has that name in {runs_dir}; `ratchet status` lists what runs")
    return record
