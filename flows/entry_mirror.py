"""MLflow as a mirror of what is on disk: the run of one store entry (`flows.mirror` has that of a pipeline run).

Whatever MLflow misses while it is away is in the entry's files, and what it has got of them stands beside them, in
`tracking.json`. So sending is the same whether it is a row that was just logged, an hour of rows after an outage, or a
whole entry that another process made; and what is sent twice counts once.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import OmegaConf

from flows.progress_log import Row
from flows.store import Entry, write_json
from flows.tracking import Tracker

_ROWS_AT_ONCE = 50
_LOCK_SECONDS = 10.0


class EntryMirror:
    """The MLflow run of one store entry; `tracking.json` has its id and what it has got.

    Attributes:
        status: How the attempt at the stage stands; an entry with a result is FINISHED.
        progress: The rows logged so far.
    """

    def __init__(self, tracker: Tracker, entry: Entry, name: str, pipeline: str) -> None:
        self.status = "RUNNING"
        self.progress: Callable[[], Sequence[Row]] = entry.progress
        self._tracker, self._entry, self._name, self._pipeline = tracker, entry, name, pipeline
        self._sent: dict[str, Any] = {}
        self._checked = 0
        self._load()

    @property
    def run(self) -> str | None:
        """The MLflow run's id, once it is made."""
        return self._sent.get("run")

    def restart(self) -> None:
        """A new attempt at the stage begins: its parent, status and result are to be sent, its rows go on."""
        self._note(parent=None, status=None, result=False)

    def send(self, parent: str) -> None:
        """Bring the MLflow run up to date, below the run `parent`.

        Raises:
            Exception: Whatever MLflow, or a database under it, raises.
        """
        if self._complete() and self._checked == self._tracker.connections:
            return
        try:
            with FileLock(self._entry.path.with_name(f".{self._entry.id}.tracking.lock"), timeout=_LOCK_SECONDS):
                self._load()
                self._send(parent)
        except Timeout:  # whoever has the lock sends the same files
            return

    def _load(self) -> None:
        saved = self._entry.saved("tracking.json") or {}
        same = saved.get("uri") == self._tracker.uri or _all_sent(saved)
        self._sent = saved if same else {"uri": self._tracker.uri, "id": f"{self._entry.id}@{self._pipeline}"}

    def _note(self, **values: Any) -> None:
        self._sent.update(values)
        write_json(self._entry.path / "tracking.json", self._sent)

    def _complete(self) -> bool:
        return _all_sent(self._sent)

    def _send(self, parent: str) -> None:
        if self._sent["uri"] != self._tracker.uri:  # complete, on another server
            return
        if self._checked != self._tracker.connections:
            self._check()
        if self._complete():
            return
        run = self.run or self._open(parent)
        self._send_settings(run, parent)
        self._send_rows(run)
        self._send_result(run)
        status = "FINISHED" if self._result() else self.status
        if self._sent.get("status") != status:
            self._tracker.status(run, status, _written(self._entry.path / "result.json"))
            self._note(status=status)

    def _check(self) -> None:
        """Forget a run that MLflow has not got any more; a complete one that a user deleted stays deleted."""
        found = self._tracker.lifecycle(self.run) if self.run else None
        if self.run and found != "active" and not (found == "deleted" and self._complete()):
            self._sent = {"uri": self._tracker.uri, "id": self._sent["id"]}
        self._checked = self._tracker.connections

    def _open(self, parent: str) -> str:
        self._note()  # so that an attempt whose answer is lost is found by its id
        tags = {
            "mlflow.parentRunId": parent,
            "ratchet.store": self._entry.id,
            "ratchet.stage": self._entry.id.rsplit("-", 1)[0],
        }
        started = _written(self._entry.path / "config.yaml") or 0
        run = self._tracker.open(self._sent["id"], self._name, tags, started)
        self._note(run=run, parent=parent)
        return run

    def _send_settings(self, run: str, parent: str) -> None:
        if self._sent.get("parent") is None:
            self._tracker.tag(run, "mlflow.parentRunId", parent)
            self._note(parent=parent)
        path = self._entry.path / "config.yaml"
        if not self._sent.get("params") and path.is_file():
            values = OmegaConf.load(path)
            settings = OmegaConf.to_container(values.settings)
            self._tracker.params(run, {values.stage: settings, "seed": values.seed})
            self._note(params=True)

    def _send_rows(self, run: str) -> None:
        rows = self.progress()
        done = self._sent.get("rows", 0)
        if done and (done > len(rows) or _when(rows[done - 1]) != self._sent["last_row"]):
            done = 0  # rows were replaced; those that were not count once however often they are sent
        for begin in range(done, len(rows), _ROWS_AT_ONCE):
            part = rows[begin : begin + _ROWS_AT_ONCE]
            self._tracker.rows(run, part)
            self._note(rows=begin + len(part), last_row=_when(part[-1]))

    def _result(self) -> Any:
        return self._entry.saved("result.json")

    def _send_result(self, run: str) -> None:
        result = None if self._sent.get("result") else self._result()
        if result is None:
            return
        folder = self._entry.path
        when = _written(folder / "result.json")
        self._tracker.rows(run, [{**result["metrics"], "step": 0, "timestamp": when}])
        names = [*result["artifacts"].values(), "receipt.json", "config.yaml", "adapter"]
        for path in (folder / name for name in names):
            if path.exists():
                self._tracker.artifact(run, path)
                if path.suffix == ".parquet":
                    self._tracker.table(run, path)
        self._note(result=True)


def _all_sent(sent: Mapping[str, Any]) -> bool:
    return sent.get("status") == "FINISHED" and bool(sent.get("result"))


def _when(row: Row) -> Any:
    return row.get("timestamp")


def _written(path: Path) -> int | None:
    """When a file was written, in milliseconds since 1970."""
    return round(path.stat().st_mtime * 1000) if path.is_file() else None
