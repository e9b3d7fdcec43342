"""`progress.jsonl` of a store entry: one row per optimiser step, each exactly once, over any number of attempts.

An attempt that resumes goes through the steps after its checkpoint again. Rows it repeats are already there; a row that
comes out otherwise (a GPU may not repeat itself to the bit) takes the place of the old one and of all that followed.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conf.errors import UserError
from stages.cache import write_atomically

_NOT_COMPARED = ("time", "timestamp")
"""Columns that differ from attempt to attempt without meaning anything."""

Row = dict[str, Any]


class ProgressLog:
    """The rows of one entry. `timestamp` is added to every row: milliseconds since 1970, when it was first logged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = read_progress(path)
        if path.is_file() and path.read_bytes() != _text(self.rows).encode():  # a last line that was cut off
            write_atomically(path, _text(self.rows))

    def add(self, row: Mapping[str, float]) -> bool:
        """Keep a row, as the last one unless it was there already; returns whether it is new."""
        place = next((place for place, old in enumerate(self.rows) if old["step"] >= row["step"]), len(self.rows))
        if place < len(self.rows):
            if _compared(self.rows[place]) == _compared(row):
                return False
            self.rows = self.rows[:place]
            write_atomically(self.path, _text(self.rows))
        self.rows.append({**row, "timestamp": int(time.time() * 1000)})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_text(self.rows[-1:]))
        return True


def read_progress(path: Path) -> list[Row]:
    """The rows of a file; without a last one that is still being written. A file that is not there has none.

    Raises:
        UserError: A row is damaged; names its line.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    return [_read_row(path, number, line) for number, line in enumerate(lines, 1) if line.endswith(b"\n")]


def _read_row(path: Path, number: int, line: bytes) -> Row:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if isinstance(row, dict) and "step" in row:
        return row
    raise UserError(f"{path}, line {number}: is damaged; run its pipeline again")


def _text(rows: list[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _compared(row: Mapping[str, Any]) -> Row:
    return {name: value for name, value in row.items() if name not in _NOT_COMPARED}
