"""One step, from inputs to result: take it from the store, or call the stage and keep what it leaves.

This is all of running a step but Prefect, which `flows.tasks` adds.
"""

import importlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from conf.loader import dump
from conf.run import RunConfig
from flows.console import Console, clock
from flows.outcome import EXIT_CODES
from flows.progress_log import ProgressLog
from flows.record import Record
from flows.stop import StopRequest
from flows.store import Entry
from flows.tracking import Tracker
from flows.workspace import StepInputs, Workspace
from rewards.sources import reward_sources
from stages.contract import Interrupted, StageContext, StageResult


@dataclass(kw_only=True, eq=False)
class PipelineRun:
    """A pipeline run in progress: what it was given and where it reports to."""

    config: RunConfig
    workspace: Workspace
    record: Record
    tracker: Tracker
    console: Console
    stop: StopRequest
    results: dict[str, StageResult] = field(default_factory=dict)

    def close(self, state: str) -> None:
        """Write down how the run ended."""
        verdicts = [
            result.verdict for result in self.results.values() if result.verdict and result.verdict in EXIT_CODES
        ]
        try:
            self.record.end(state, verdicts[-1] if verdicts else None)
            self.tracker.artifact(self.record.values["mlflow_run"], self.record.folder / "pipeline.json")
            self.tracker.finish(self.record.values["mlflow_run"], _MLFLOW_STATUS.get(state, "FINISHED"))
        finally:
            self.record.release()


_MLFLOW_STATUS = {"failed": "FAILED", "interrupted": "KILLED", "cancelled": "KILLED"}


def execute(run: PipelineRun, inputs: StepInputs) -> tuple[StageResult, bool]:
    """Do a step, or take its result from the store; returns the result and whether it was taken.

    Raises:
        Interrupted: The run was asked to end.
        Exception: Whatever the stage raises; the step is then recorded as failed.
    """
    entry = run.workspace.entry(inputs)
    told = ""

    def on_wait(holder: str) -> None:
        nonlocal told
        if holder != told:
            run.console.say(f"{inputs.name}: waiting for {holder}, which is making {entry.id}")
            run.record.update_step(inputs.name, state="waiting", store=entry.id)
            told = holder
        if run.stop.requested():
            raise Interrupted(f"{inputs.name}: interrupted")

    with run.workspace.store.locked(entry, run.record.holder, on_wait):
        result = entry.result()
        if result is not None:
            _reuse(run, inputs, entry, result)
            return result, True
        return _make(run, inputs, entry), False


def _reuse(run: PipelineRun, inputs: StepInputs, entry: Entry, result: StageResult) -> None:
    run.console.say(f"{inputs.name}: cached ({entry.id})")
    _show(run, result)
    owner = (entry.saved("tracking.json") or {}).get("run")
    tags = {"ratchet.store": entry.id, "ratchet.cached": "true", "ratchet.cached_run": str(owner)}
    child = run.tracker.start(inputs.name, run.record.values["mlflow_run"], tags)
    run.tracker.metrics(child, result.metrics)
    run.tracker.finish(child)
    run.record.update_step(
        inputs.name,
        state="cached",
        store=entry.id,
        metrics=dict(result.metrics),
        report=result.report,
        mlflow_run=child,
        seconds=0.0,
    )


def _make(run: PipelineRun, inputs: StepInputs, entry: Entry) -> StageResult:
    entry.path.mkdir(exist_ok=True)
    entry.clear()
    child = _tracking_run(run, inputs, entry)
    run.console.say(f"{inputs.name}: {inputs.step.stage} from {inputs.step.start} ({entry.id})")
    run.record.update_step(inputs.name, state="running", store=entry.id, mlflow_run=child)
    started = time.monotonic()
    try:
        _write_inputs(run, inputs, entry)
        run.tracker.params(child, {inputs.step.stage: dump(inputs.settings), "seed": run.config.sections.seed})
        with _logging_to(entry.path / "log.txt"):
            result = _stage(inputs.step.stage)(inputs.settings, _context(run, inputs, entry, child))
    except BaseException as error:
        state = run.stop.ended(error)
        run.record.update_step(inputs.name, state=state, error=f"{type(error).__name__}: {error}")
        run.tracker.finish(child, _MLFLOW_STATUS[state])
        raise
    seconds = time.monotonic() - started
    entry.write_result(result, seconds)
    _track_result(run, entry, result, child)
    numbers = {"metrics": dict(result.metrics), "seconds": round(seconds, 3)}
    run.record.update_step(inputs.name, state="completed", report=result.report, **numbers)
    run.console.say(f"{inputs.name}: done in {clock(seconds)}")
    _show(run, result)
    return result


def _show(run: PipelineRun, result: StageResult) -> None:
    """Show a report at once; that of a step alone in its pipeline is the outcome, which the command prints."""
    if result.report and len(run.config.steps) > 1:
        run.console.say(f"\n{result.report}\n")


def _stage(name: str) -> Callable[[Any, StageContext], StageResult]:
    """The stage's function; importing it is what loads torch."""
    function: Callable[[Any, StageContext], StageResult] = getattr(
        importlib.import_module(f"stages.{name}"), f"run_{name}"
    )
    return function


def _context(run: PipelineRun, inputs: StepInputs, entry: Entry, child: str) -> StageContext:
    log = ProgressLog(entry.path / "progress.jsonl")

    def log_metrics(row: Mapping[str, float]) -> None:
        if log.add(row):
            run.tracker.metrics(child, log.rows[-1], round(row["step"]))
        run.console.row(inputs.name, row)

    def progress(what: str, done: int, total: int) -> None:
        run.console.progress(inputs.name, what, done, total)
        run.record.progress(inputs.name, what, done, total)
        if run.stop.requested() and what != "train":  # training is asked by `stopping`, and saves first
            raise Interrupted(f"{inputs.name}: interrupted")

    return StageContext(
        models=inputs.models,
        out_dir=entry.path,
        seed=run.config.sections.seed,
        hardware=run.workspace.hardware,
        data=run.workspace.stage_data(inputs),
        rewards=inputs.rewards,
        suites=run.workspace.stage_suites(inputs),
        log_metrics=log_metrics,
        progress=progress,
        say=lambda text: run.console.say(f"  {inputs.name}  {text}"),
        stopping=run.stop.requested,
    )


def _tracking_run(run: PipelineRun, inputs: StepInputs, entry: Entry) -> str:
    """The entry's own tracking run: the one an interrupted attempt began, or a new one."""
    parent = run.record.values["mlflow_run"]
    saved = entry.saved("tracking.json")
    if saved and saved["uri"] == run.tracker.uri and run.tracker.reopen(saved["run"], parent):
        return str(saved["run"])
    child = run.tracker.start(inputs.name, parent, {"ratchet.store": entry.id, "ratchet.stage": inputs.step.stage})
    (entry.path / "tracking.json").write_text(json.dumps({"uri": run.tracker.uri, "run": child}), encoding="utf-8")
    return child


def _write_inputs(run: PipelineRun, inputs: StepInputs, entry: Entry) -> None:
    """Leave beside the result what it was made from."""
    values = {
        "stage": inputs.step.stage,
        "settings": dump(inputs.settings),
        "models": {label: ref.identity for label, ref in inputs.models.items()},
        "data": inputs.data_id,
        "rewards": dump(inputs.rewards),
        "suites": inputs.suite_ids,
        "seed": run.config.sections.seed,
        "hardware": vars(run.workspace.hardware),
        "model": dump(run.config.sections.model),
    }
    OmegaConf.save(OmegaConf.create(values), entry.path / "config.yaml")
    sources = reward_sources(inputs.rewards, run.workspace.base_dir)
    common = os.path.commonpath([source.parent for source in sources]) if sources else ""
    for source in sources:
        copy = entry.path / "rewards" / source.relative_to(common)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy)


def _track_result(run: PipelineRun, entry: Entry, result: StageResult, child: str) -> None:
    run.tracker.metrics(child, result.metrics)
    adapter = entry.path / "adapter"
    for path in [*result.artifacts.values(), entry.path / "receipt.json", entry.path / "config.yaml", adapter]:
        if path.exists():
            run.tracker.artifact(child, path)
    run.tracker.finish(child)


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """While a stage runs, every library's log records and warnings go to a file, and nowhere else."""
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    before, root.handlers = root.handlers, [handler]
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers = before
        handler.close()
