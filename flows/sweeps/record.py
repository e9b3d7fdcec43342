"""`sweep.json`: what a sweep is, was given, and has come to; beside it leaderboard, report, and its cells' output.

A sweep is alive, and is cancelled, in the way of a pipeline run (see `flows.liveness`, `flows.stop`).
"""

import json
import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conf.schema import RatchetConfig
from flows.liveness import hold, is_alive
from flows.store import write_json

FOLDER = "sweeps"
"""Under the runs directory."""


class SweepRecord:
    """The record of one sweep, on disk from the beginning on.

    Args:
        config: That of its first cell.
        runs_dir: Where runs live.
        command: The command line that starts it again.
    """

    def __init__(self, config: RatchetConfig, runs_dir: Path, command: Sequence[str]) -> None:
        now = datetime.now(UTC)
        self.folder = runs_dir / FOLDER / f"{config.name}-{now:%Y%m%d-%H%M%S-%f}"
        (self.folder / "cells").mkdir(parents=True)
        self.values: dict[str, Any] = {
            "id": self.folder.name,
            "name": config.name,
            "state": "running",
            "started": now.isoformat(timespec="milliseconds"),
            "ended": None,
            "command": list(command),
            "directory": str(Path.cwd()),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "config": {"runs_dir": config.runs_dir},
            "mlflow_run": None,
            "prefect_run": None,
            "prefect_url": None,
            "prefect_told": False,
            "total": 0,
            "cells": {},
        }
        self._lock: int | None = hold(self.folder)
        self.update()

    @property
    def id(self) -> str:
        """`<name>-<time>`."""
        return self.folder.name

    def output(self, cell: int) -> Path:
        """The file for what a cell would write to the terminal."""
        return self.folder / "cells" / f"{cell}.txt"

    def update(self, **values: Any) -> None:
        """Change fields."""
        self.values.update(values)
        write_json(self.folder / "sweep.json", self.values)

    def update_cell(self, cell: int, **values: Any) -> None:
        """Change fields of a cell."""
        self.values["cells"].setdefault(str(cell), {}).update(values)
        self.update()

    def end(self, state: str) -> None:
        """The sweep is over."""
        self.update(state=state, ended=datetime.now(UTC).isoformat(timespec="milliseconds"))
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


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
