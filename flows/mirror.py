"""MLflow as a mirror of what is on disk: the run of a pipeline run and those of its steps, brought up to date at will.

What stands in `pipeline.json` is sent, at once or when MLflow answers again; `flows.entry_mirror` does it for a step.
"""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from flows.entry_mirror import EntryMirror
from flows.liveness import is_alive
from flows.record import Record
from flows.references import pipeline_records
from flows.store import Entry
from flows.tracking import Tracker

STATUS = {
    "completed": "FINISHED",
    "stopped": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
    "cancelled": "KILLED",
}
"""MLflow's word for how a run or a step ended."""


class RunMirror:
    """The MLflow runs of a pipeline run: its own, those of the entries it makes, a light one for each it takes."""

    def __init__(self, tracker: Tracker, record: Record) -> None:
        self.tracker = tracker
        self._record = record
        self._entries: dict[str, EntryMirror] = {}
        self._checked = 0

    def start(self) -> None:
        """Open the run.

        Raises:
            UserError: MLflow cannot be used, and is required; UnreachableError where that may pass.
        """
        self.tracker.attempt(self._send, required=self.tracker.required)

    def add(self, step: str, entry: Entry) -> EntryMirror:
        """Mirror an entry, too."""
        self._entries[step] = EntryMirror(self.tracker, entry, step, self._record.id)
        return self._entries[step]

    def sync(self, insist: bool = False) -> bool:
        """Bring everything up to date, if MLflow can be reached (see `Tracker.attempt`); returns whether it is."""
        return self.tracker.attempt(self._send, insist=insist)

    def _send(self) -> None:
        values, steps = self._record.values, self._record.steps
        parent = self._open()
        for name, mirror in self._entries.items():
            mirror.send(parent)
            if steps[name]["mlflow_run"] is None and steps[name]["state"] != "cached":
                self._record.update_step(name, mlflow_run=mirror.run)
        for name, step in steps.items():
            if step["state"] == "cached" and step["mlflow_run"] is None:
                self._record.update_step(name, mlflow_run=self._link(parent, name, step))
        if values["state"] in STATUS and not values["mlflow_done"]:
            self.tracker.artifact(parent, self._record.folder / "pipeline.json")
            ended = _milliseconds(values["ended"]) if values["ended"] else None  # it died, and could not say when
            self.tracker.status(parent, STATUS[values["state"]], ended)
            self._record.update(mlflow_done=True)

    def _open(self) -> str:
        values = self._record.values
        run: str | None = values["mlflow_run"]
        if run and self._checked != self.tracker.connections and self.tracker.lifecycle(run) != "active":
            run = None
            for step in self._record.steps.values():
                step["mlflow_run"] = None
        if run is None:
            name, started = self._record.id, _milliseconds(self._record.values["started"])
            run = self.tracker.open(name, name, {"ratchet.pipeline": name, **_sweep_tags(values)}, started)
            self._record.update(mlflow_run=run)
        self._checked = self.tracker.connections
        return run

    def _link(self, parent: str, name: str, step: Mapping[str, Any]) -> str:
        """The light run of a cached step, which links to the one of its entry."""
        owner = self._entries[name].run if name in self._entries else None
        tags = {
            "mlflow.parentRunId": parent,
            "ratchet.store": step["store"],
            "ratchet.cached": "true",
            "ratchet.cached_run": str(owner),
        }
        started = _milliseconds(self._record.values["started"])
        run = self.tracker.open(f"{self._record.id}/{name}", name, tags, started)
        self.tracker.rows(run, [{**step["metrics"], "step": 0, "timestamp": started}])
        self.tracker.status(run, "FINISHED")
        return run


def catch_up(tracker: Tracker, runs_dir: Path) -> None:
    """Send what MLflow has not got of the pipeline runs that are over."""
    for values in pipeline_records(runs_dir):
        untold = values["state"] in STATUS and not values.get("mlflow_done", True)
        if untold and values["mlflow_uri"] == tracker.uri and not is_alive(runs_dir / "pipelines" / values["id"]):
            RunMirror(tracker, Record.existing(runs_dir, values)).sync()


def _sweep_tags(values: Mapping[str, Any]) -> dict[str, str]:
    """Of a cell: the sweep, and its run as parent, where MLflow could be asked for one."""
    sweep = values.get("sweep")
    if not sweep:
        return {}
    parent = {"mlflow.parentRunId": sweep["mlflow_run"]} if sweep["mlflow_run"] else {}
    return {"ratchet.sweep": sweep["id"], **parent}


def _milliseconds(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)
