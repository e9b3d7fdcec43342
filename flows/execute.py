"""One step, from inputs to result: take it from the store, or call the stage and keep what it leaves.

This is all of running a step but Prefect, which `flows.tasks` adds.
"""

import importlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
from flows.store import Entry, write_json
from flows.tracking import Tracker
from flows.workspace import StepInputs, Workspace
from rewards.sources import reward_sources
from stages.contract import Interrupted, StageContext, StageResult
from stages.disk import clear_disk_errors


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

    def close(self, state: str, error: BaseException | None = None) -> None:
        """Write down how the run ended."""
        verdicts = [
            result.verdict for result in self.results.values() if result.verdict and result.verdict in EXIT_CODES
        ]
        self.record.end(state, verdicts[-1] if verdicts else None)
        self.tracker.artifact(self.record.values["mlflow_run"], self.record.folder / "pipeline.json")
        self.tracker.finish(self.record.values["mlflow_run"], "FAILED" if error else "FINISHED")


def execute(run: PipelineRun, inputs: StepInputs) -> tuple[StageResult, bool]:
    """Do a step, or take its result from the store; returns the result and whether it was taken.

    Raises:
        Exception: Whatever the stage raises; the step is then recorded as failed.
    """
    entry = run.workspace.entry(inputs)

    def say_waiting() -> None:
        run.console.say(f"{inputs.name}: another process is making {entry.id}; waiting for it")

    with run.workspace.store.locked(entry, say_waiting):
        result = entry.result()
        if result is not None:
            _reuse(run, inputs, entry, result)
            return result, True
        if damage := entry.damage():
            run.console.say(f"{inputs.name}: {damage}; it is made again ({entry.id})")
            entry.discard()
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
        with clear_disk_errors(entry.path), _logging_to(entry.path / "log.txt"):
            result = _stage(inputs.step.stage)(inputs.settings, _context(run, inputs, entry, child))
            seconds = time.monotonic() - started
            entry.write_result(result, seconds)
    except BaseException as error:
        state = "interrupted" if run.stop.requested() else "failed"
        with suppress(Exception):  # what cannot be written down, on a full disk, must not hide why
            run.record.update_step(inputs.name, state=state, error=f"{type(error).__name__}: {error}")
            run.tracker.finish(child, "KILLED" if run.stop.requested() else "FAILED")
        raise
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
    write_json(entry.path / "tracking.json", {"uri": run.tracker.uri, "run": child})
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
    write_json(entry.path / "inputs.json", inputs.parts)
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
    handler = _LogFile(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    before, root.handlers = root.handlers, [handler]
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers = before
        with suppress(OSError):
            handler.close()


class _LogFile(logging.FileHandler):
    """A log that a full disk cannot take: it ends there, quietly, for what stops the stage is said elsewhere."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Say nothing."""
