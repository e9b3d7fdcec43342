"""`ratchet cancel RUN`: ask a run or a sweep that is alive, wherever, to keep what it has done and end."""

import argparse
import time
from pathlib import Path
from typing import Any

from conf.errors import UserError
from flows.liveness import is_alive
from flows.orphans import resume_command
from flows.references import find_pipeline
from flows.stop import CANCEL
from flows.sweeps.record import FOLDER, sweep_records

_POLL_SECONDS = 0.2


def main(arguments: argparse.Namespace) -> int:
    """Leave the request, and with `--wait` wait until the run has ended; returns the exit code.

    Raises:
        UserError: There is no such run, or it is not alive.
    """
    runs_dir = Path(arguments.runs_dir)
    folder, record = _alive(runs_dir, arguments.run)
    run_id = record["id"]
    (folder / CANCEL).touch()
    print(f"{run_id}: asked to end; it keeps what it has done first, and the same command continues", flush=True)
    if arguments.wait:
        while is_alive(folder):
            time.sleep(_POLL_SECONDS)
        print(f"{run_id}: {_found(runs_dir, run_id)[1]['state']}")
    return 0


def _alive(runs_dir: Path, text: str) -> tuple[Path, dict[str, Any]]:
    folder, record = _found(runs_dir, text)
    if record["state"] == "interrupted" and not record.get("imported"):
        raise UserError(f"{record['id']}: is interrupted, its process is gone; `{resume_command(record)}` continues it")
    if record["state"] != "running":
        raise UserError(f"{record['id']}: does not run, it is {record['state']}; `ratchet status` lists what runs")
    return folder, record


def _found(runs_dir: Path, text: str) -> tuple[Path, dict[str, Any]]:
    """The folder and the record of a sweep or of a pipeline run."""
    for sweep in sweep_records(runs_dir):
        if sweep["id"] == text:
            return runs_dir / FOLDER / text, sweep
    record = find_pipeline(runs_dir, text)
    if record is None:
        raise UserError(f"{text}: no pipeline run has that name in {runs_dir}; `ratchet status` lists what runs")
    return runs_dir / "pipelines" / record["id"], record
