"""`sweep.json`: what a sweep is, was given, and has come to; beside it leaderboard, report, and its cells' output.

A sweep is alive, and is cancelled, in the way of a pipeline run (see `flows.liveness`, `flows.stop`).
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conf.schema import RatchetConfig
from flows.live_record import LiveRecord, new_id, this_process, time_text
from flows.liveness import is_alive

FOLDER = "sweeps"
"""Under the runs directory."""


class SweepRecord(LiveRecord):
    """The record of one sweep, on disk from the beginning on.

    Args:
        config: That of its first cell.
        runs_dir: Where runs live.
        command: The command line that starts it again.
    """

    file = "sweep.json"

    def __init__(self, config: RatchetConfig, runs_dir: Path, command: Sequence[str]) -> None:
        now = datetime.now(UTC)
        folder = runs_dir / FOLDER / new_id(config.name, now)
        (folder / "cells").mkdir(parents=True)
        values = {
            "id": folder.name,
            "name": config.name,
            "state": "running",
            "started": time_text(now),
            "ended": None,
            "command": list(command),
            **this_process(),
            "config": {"runs_dir": config.runs_dir},
            "mlflow_run": None,
            "prefect_run": None,
            "prefect_url": None,
            "prefect_told": False,
            "total": 0,
            "cells": {},
        }
        super().__init__(folder, values)
        self.hold()
        self._write()

    def output(self, cell: int) -> Path:
        """The file for what a cell would write to the terminal."""
        return self.folder / "cells" / f"{cell}.txt"

    def update_cell(self, cell: int, **values: Any) -> None:
        """Change fields of a cell."""
        self.values["cells"].setdefault(str(cell), {}).update(values)
        self._write()

    def end(self, state: str) -> None:
        """The sweep is over."""
        self.update(state=state, ended=time_text())
        self.release()


def sweep_records(runs_dir: Path) -> list[dict[str, Any]]:
    """The records of all sweeps, oldest first; one whose process died says that it was interrupted."""
    records = []
    for path in (runs_dir / FOLDER).glob("*/sweep.json"):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if record["state"] == "running" and not is_alive(path.parent):
            record["state"] = "interrupted"
        records.append(record)
    return sorted(records, key=lambda record: str(record["started"]))
