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
from conf.steps import STAGES
from flows.console import Console, clock
from flows.entry_mirror import EntryMirror
from flows.leases import lease, once_each
from flows.mirror import STATUS, RunMirror
from flows.outcome import worst
from flows.progress_log import ProgressLog
from flows.ranks import run_ranks
from flows.record import Record
from flows.stop import Stopped, StopRequest
from flows.store import Entry, write_json
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
    mirror: RunMirror
    console: Console
    stop: StopRequest
    results: dict[str, StageResult] = field(default_factory=dict)
    error: BaseException | None = None

    def skip(self, step: str, reason: str) -> None:
        """Leave a step out, and say why."""
        self.console.say(f"{step}: skipped, {reason}")
        self.record.update_step(step, state="skipped", error=reason)

    def close(self, state: str, error: BaseException | None = None) -> None:
        """Write down how the run ended, and keep the error that says so to whoever waits for the run."""
        self.error = Stopped(self.stop.reason) if isinstance(error, Interrupted) else error
        self.record.end(state, worst(result.verdict for result in self.results.values()))
        if not self.mirror.sync(insist=True):
            self.console.say("what MLflow has not got yet is sent by the next run that reaches it")


def execute(run: PipelineRun, inputs: StepInputs) -> tuple[StageResult, bool]:
    """Do a step, or take its result from the store; returns the result and whether it was taken.

    Raises:
        Interrupted: The run was asked to end.
        Exception: Whatever the stage raises; the step is then recorded as failed.
    """
    entry = run.workspace.entry(inputs)
    on_wait = _telling(run, inputs.name, f"is making {entry.id}", store=entry.id)
    with run.workspace.store.locked(entry, run.record.holder, on_wait):
        result = entry.result()
        if result is not None:
            _reuse(run, inputs, entry, result)
            return result, True
        if damage := entry.damage():
            run.console.say(f"{inputs.name}: {damage}; it is made again ({entry.id})")
            entry.discard()
        with _leased(run, inputs):
            return _make(run, inputs, entry), False


def _telling(run: PipelineRun, step: str, why: str, **values: Any) -> Callable[[str], None]:
    """What to do while a step waits for another run: say so once, and see whether this one is asked to end."""

    @once_each
    def tell(holder: str) -> None:
        run.record.update_step(step, state="waiting", **values)
        run.console.say(f"{step}: waiting for {holder}, which {why}")

    def on_wait(holder: str) -> None:
        tell(holder)
        run.stop.check(step)

    return on_wait


@contextmanager
def _leased(run: PipelineRun, inputs: StepInputs) -> Iterator[None]:
    """Hold what the step computes on."""
    if not STAGES[inputs.step.stage].computes:
        yield
        return
    hardware = inputs.hardware
    where = "GPU" if hardware.device == "cuda" else hardware.device.upper()
    with lease(hardware, run.record.holder, _telling(run, inputs.name, f"computes on this host's {where}")):
        yield


def _reuse(run: PipelineRun, inputs: StepInputs, entry: Entry, result: StageResult) -> None:
    run.console.say(f"{inputs.name}: cached ({entry.id})")
    _show(run, result)
    numbers = {"metrics": dict(result.metrics), "seconds": 0.0}
    run.record.update_step(inputs.name, state="cached", store=entry.id, report=result.report, **numbers)
    run.mirror.add(inputs.name, entry)
    run.mirror.sync()


def _make(run: PipelineRun, inputs: StepInputs, entry: Entry) -> StageResult:
    entry.path.mkdir(exist_ok=True)
    entry.clear()
    run.console.say(f"{inputs.name}: {inputs.step.stage} from {inputs.step.start} ({entry.id})")
    run.record.update_step(inputs.name, state="running", store=entry.id)
    mirror = run.mirror.add(inputs.name, entry)
    mirror.restart()
    started = time.monotonic()
    try:
        _write_inputs(run, inputs, entry)
        run.mirror.sync()
        with clear_disk_errors(entry.path), _logging_to(entry.path / "log.txt"):
            result = _run(inputs, _context(run, inputs, entry, mirror))
            seconds = time.monotonic() - started
            entry.write_result(result, seconds)
    except BaseException as error:
        state = run.stop.ended(error)
        mirror.status = STATUS[state]
        with suppress(Exception):  # what cannot be written down, on a full disk, must not hide why
            run.record.update_step(inputs.name, state=state, error=f"{type(error).__name__}: {error}")
        raise
    numbers = {"metrics": dict(result.metrics), "seconds": round(seconds, 3)}
    run.record.update_step(inputs.name, state="completed", report=result.report, **numbers)
    run.mirror.sync(insist=True)
    run.console.say(f"{inputs.name}: done in {clock(seconds)}")
    _show(run, result)
    return result


def _show(run: PipelineRun, result: StageResult) -> None:
    """Show a report at once; that of a step alone in its pipeline is the outcome, which the command prints."""
    if result.report and len(run.config.steps) > 1:
        run.console.say(f"\n{result.report}\n")


def _run(inputs: StepInputs, context: StageContext) -> StageResult:
    """Call the stage: here, or in several processes."""
    if context.hardware.num_processes > 1:
        return run_ranks(inputs.step.stage, inputs.settings, context)
    return _stage(inputs.step.stage)(inputs.settings, context)


def _stage(name: str) -> Callable[[Any, StageContext], StageResult]:
    """The stage's function; importing it is what loads torch."""
    function: Callable[[Any, StageContext], StageResult] = getattr(
        importlib.import_module(f"stages.{name}"), f"run_{name}"
    )
    return function


def _context(run: PipelineRun, inputs: StepInputs, entry: Entry, mirror: EntryMirror) -> StageContext:
    log = ProgressLog(entry.path / "progress.jsonl")
    mirror.progress = lambda: log.rows

    def log_metrics(row: Mapping[str, float]) -> None:
        if log.add(row):
            run.mirror.sync()
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
        hardware=inputs.hardware,
        data=run.workspace.stage_data(inputs),
        rewards=inputs.rewards,
        suites=run.workspace.suites.as_stage(inputs.suites),
        scores=run.workspace.store.scores,
        log_metrics=log_metrics,
        progress=progress,
        say=lambda text: run.console.say(f"  {inputs.name}  {text}"),
        stopping=run.stop.requested,
    )


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
        "hardware": vars(inputs.hardware),
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
