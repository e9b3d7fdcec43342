"""How a person names a run: `<pipeline-run>[/<step>]`, `latest[/<step>]`, or a unique prefix of a store id."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import UserError
from flows.liveness import is_alive
from flows.record import end_steps
from flows.store import Entry, Store
from stages.contract import ModelRef


@dataclass(frozen=True)
class FoundRun:
    """A step of a pipeline run, or a store entry named directly.

    Attributes:
        name: As a person would write it again.
        entry: Its place in the store.
        record: The pipeline run's record (`pipeline.json`), when it was found through one.
        step: The step's name, when it was found through a pipeline run.
    """

    name: str
    entry: Entry
    record: Mapping[str, Any] | None = None
    step: str | None = None

    def model(self) -> ModelRef:
        """The model the run left.

        Raises:
            UserError: The run is not finished, or its files are damaged.
        """
        result = self.entry.result()
        if result is None:
            raise UserError(f"{self.name}: is not finished, or its files were changed; run its pipeline again")
        return result.model


def find_run(runs_dir: Path, text: str) -> FoundRun:
    """Find what a person named.

    Raises:
        UserError: Nothing has that name, or more than one thing has.
    """
    pipeline, _, step = text.partition("/")
    record = find_pipeline(runs_dir, pipeline)
    if record is not None:
        return _step_of(runs_dir, record, step or None)
    entries = [] if step else Store(runs_dir).find(text)
    if len(entries) == 1:
        return FoundRun(entries[0].id, entries[0])
    if entries:
        raise UserError(f"{text}: could be any of {', '.join(entry.id for entry in entries)}")
    raise UserError(f"{text or 'RUN'}: no run has that name in {runs_dir}; `ratchet runs` lists them")


def find_pipeline(runs_dir: Path, name: str) -> dict[str, Any] | None:
    """The record of a pipeline run by its name, or of the latest one for `latest`; None when there is none."""
    records = pipeline_records(runs_dir)
    if name == "latest" and not records:
        raise UserError(f"latest: there is no run in {runs_dir} yet; `ratchet run experiment=smoke` makes one")
    if name == "latest":
        return records[-1]
    return next((record for record in records if record["id"] == name), None)


def pipeline_records(runs_dir: Path) -> list[dict[str, Any]]:
    """The records of all pipeline runs, oldest first."""
    paths = (runs_dir / "pipelines").glob("*/pipeline.json")
    records = [record for path in paths if (record := _as_it_is(path)) is not None]
    return sorted(records, key=lambda record: str(record["started"]))


def latest_with(runs_dir: Path, entry: Entry) -> dict[str, Any] | None:
    """The record of the latest pipeline run that has a store entry; None where none has."""
    records = reversed(pipeline_records(runs_dir))
    return next((each for each in records if any(step["store"] == entry.id for step in each["steps"].values())), None)


def _as_it_is(path: Path) -> dict[str, Any] | None:
    """One record; that of a run whose process died says that it was interrupted."""
    record = _read_record(path)
    if record is None or record["state"] != "running" or is_alive(path.parent):
        return record
    record = _read_record(path)  # again: a run writes its end before it lets go
    if record is not None and record["state"] == "running":
        record["state"] = "interrupted"
        end_steps(record["steps"], "interrupted")
    return record


def _read_record(path: Path) -> dict[str, Any] | None:
    """One record; a damaged one is reported and left out, so that it does not hide the others."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = None
    if isinstance(record, dict) and record.keys() >= _RECORD_KEYS:
        return record
    print(f"ratchet: {path} is damaged, and left out", file=sys.stderr)
    return None


_RECORD_KEYS = {"id", "state", "verdict", "started", "steps"}


def _step_of(runs_dir: Path, record: dict[str, Any], step: str | None) -> FoundRun:
    steps = record["steps"]
    if step is not None and step not in steps:
        raise UserError(f"{record['id']}: has no step {step!r}; steps: {', '.join(steps)}")
    done = [name for name, value in steps.items() if value["store"]]
    if not done or (step is not None and step not in done):
        raise UserError(f"{record['id']}{'/' + step if step else ''}: has not run yet; nothing was stored")
    name = step or done[-1]
    return FoundRun(f"{record['id']}/{name}", Entry(runs_dir / "store" / steps[name]["store"]), record, name)
