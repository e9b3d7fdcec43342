"""The flow: one run of a declared pipeline, from the configuration to the record of what came of it.

Read it together with `stages/contract.py` and one file of `conf/experiment/`: that is the whole of Ratchet. The steps
come in an order in which each finds what it needs; a step is a Prefect task, and is not done again when the store
already has a result for the same inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed

from conf.run import load_run
from flows.console import Console
from flows.execute import PipelineRun
from flows.mirror import RunMirror, catch_up
from flows.outcome import VERDICTS
from flows.prefect_server import users_server
from flows.record import Record
from flows.stop import StopRequest
from flows.tasks import run_step
from flows.tracking import Tracker
from flows.workers.branches import branches_of
from flows.workspace import Workspace
from stages.contract import Interrupted, StageResult


@flow(name="posttrain", validate_parameters=False, persist_result=False)
def posttrain(
    config: dict[str, Any],
    overrides: Sequence[str] = (),
    command: Sequence[str] = (),
    run_id: str | None = None,
    checked: bool = False,
    on_open: Callable[[PipelineRun], None] | None = None,
    sweep: Mapping[str, Any] | None = None,
) -> "dict[str, Any] | State[Any]":
    """Run a pipeline.

    Args:
        config: The composed configuration as plain values.
        overrides: What was asked for on the command line; recorded, not interpreted.
        command: The command line that starts the same run again; recorded, for whoever has to.
        run_id: Of a run that another process has begun and recorded for this one.
        checked: Whether `Workspace.check` has seen this configuration just now.
        on_open: Given the run as soon as it is open.
        sweep: Of which sweep the run is a cell: a `flows.live_record.Parent` as plain values, recorded as they are.

    Returns:
        The run's record, as written to `pipeline.json`, in a state of Prefect's that says what the gates decided; the
        state Cancelled for a run that was cancelled.

    Raises:
        Stopped: A signal asked the run to end early.
    """
    run = open_run(config, overrides, command, run_id, checked, sweep)
    if on_open:
        on_open(run)
    return carry_out(run)


def carry_out(run: PipelineRun) -> "dict[str, Any] | State[Any]":
    """Do the steps of a run that is open, and close it; returns and raises what `posttrain` does."""
    try:
        with run.stop.signals():
            run.mirror.start()
            stopped = run_steps(run)
    except BaseException as error:
        with suppress(Exception):  # what cannot be written down, on a full disk, must not hide why
            run.close(run.stop.ended(error), error)
        if run.record.values["state"] == "cancelled":
            return Cancelled(message=str(error))
        if run.error is not None and run.error is not error:
            raise run.error from error
        raise
    run.close("stopped" if stopped else "completed")
    verdict = run.record.values["verdict"]
    return Completed(name=VERDICTS[verdict], data=run.record.values) if verdict in VERDICTS else run.record.values


def run_steps(run: PipelineRun) -> bool:
    """Do one step after the other; returns whether one of them stopped the pipeline."""
    with branches_of(run) as branches:
        for name, step in run.config.steps.items():
            if run.stop.requested():
                raise Interrupted(f"{name}: not begun")
            if gate := run.workspace.held_by(name, run.results):
                run.skip(name, f"held by {gate}")
            elif run.workspace.is_due(name, run.results):
                if branches:
                    branches.begin_beside(name)
                task = run_step.with_options(name=step.stage, task_run_name=name)
                state: Any = task(run, run.workspace.inputs(name, run.results), return_state=True)
                if state.is_cancelled():
                    raise Interrupted(state.message)
                result: StageResult = state.result()
                run.workspace.finish(name, result, run.results)
                if result.verdict == "stop":
                    return True
    return False


def open_run(
    config: dict[str, Any],
    overrides: Sequence[str],
    command: Sequence[str] = (),
    run_id: str | None = None,
    checked: bool = False,
    sweep: Mapping[str, Any] | None = None,
) -> PipelineRun:
    """Resolve everything that needs no model, and open the run's record and its tracking run."""
    parsed = load_run(config)
    workspace = Workspace(parsed)
    if not checked:
        workspace.check()
    workspace.models.find()
    console = Console()
    record = Record(parsed, workspace.runs_dir, overrides, command, run_id)
    stop = StopRequest(console.say, record.folder, *([Path(sweep["folder"])] if sweep else []))
    record.begin(
        prefect_run=flow_run.get_id(), prefect_attempt=flow_run.get_run_count(), prefect_url=users_server(), sweep=sweep
    )
    try:
        tracker = Tracker(parsed.sections.tracking, workspace.runs_dir, console.say)
    except BaseException as error:
        record.end(stop.ended(error))
        record.release()
        raise
    record.update(
        mlflow_uri=tracker.uri, aliases=workspace.models.aliases.asked, original=workspace.models.aliases.original_tag
    )
    catch_up(tracker, workspace.runs_dir)
    for line in workspace.notices():
        console.say(line)
    mirror = RunMirror(tracker, record)
    return PipelineRun(config=parsed, workspace=workspace, record=record, mirror=mirror, console=console, stop=stop)
