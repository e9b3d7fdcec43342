"""What the records of a run and of a sweep have in common: a folder, a file in it, and the process that is at it.

Runs belong to both: a cell to its sweep, and to a run what makes one of its steps beside it (see `flows.workers`).
"""

import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from flows.liveness import hold
from flows.store import write_json


@dataclass(frozen=True, kw_only=True)
class Parent:
    """What a run belongs to, as it is told and records it (`sweep`).

    Attributes:
        id: Of the sweep, or of the run.
        folder: Its folder, where a request to end is seen.
        mlflow_run: Its run in MLflow; None where MLflow could not be asked for one.
        number: Which part of it: the number of a cell, or the name of a step.
    """

    id: str
    folder: str
    mlflow_run: str | None
    number: int | str


class LiveRecord:
    """A record on disk, and alive while a process holds the lock beside it (see `flows.liveness`).

    Args:
        folder: Where it is; the folder's name is its id.
        values: What it says, with `mlflow_run` among it.

    Attributes:
        file: Name of the file.
        lock: The descriptor of the lock, while this process holds it.
    """

    file: ClassVar[str]

    def __init__(self, folder: Path, values: dict[str, Any]) -> None:
        self.folder, self.values = folder, values
        self.lock: int | None = None

    @property
    def id(self) -> str:
        """`<name>-<time>`."""
        return self.folder.name

    def hold(self) -> None:
        """Be alive from now on."""
        self.lock = hold(self.folder)

    def release(self) -> None:
        """Be alive no longer, as far as this process is concerned."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def update(self, **values: Any) -> None:
        """Change fields."""
        self.values.update(values)
        self._write()

    def parent_of(self, number: int | str) -> Parent:
        """What a run that belongs to this is told of it."""
        run: str | None = self.values["mlflow_run"]
        return Parent(id=self.id, folder=str(self.folder), mlflow_run=run, number=number)

    def _write(self) -> None:
        write_json(self.folder / self.file, self.values)


def new_id(name: str, begun: datetime) -> str:
    """The id of what begins now under a name."""
    return f"{name}-{begun:%Y%m%d-%H%M%S-%f}"


def time_text(time: datetime | None = None) -> str:
    """A time, or the present, as records have it."""
    return (time or datetime.now(UTC)).isoformat(timespec="milliseconds")


def this_process() -> dict[str, Any]:
    """The process that is at it, as records have it, and the directory that relative paths start from."""
    return {"directory": str(Path.cwd()), "host": socket.gethostname(), "pid": os.getpid()}
