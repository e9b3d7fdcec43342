"""The flow: one run of a declared pipeline, from the configuration to the record of what came of it.

Read it together with `stages/contract.py` and one file of `conf/experiment/`: that is the whole of Ratchet. The steps
come in an order in which each finds what it needs; a step is a Prefect task, and is not done again when the store
already has a result for the same inputs.
"""

from collections.abc import Sequence
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from conf.run import load_run
from flows.console import Console
from flows.execute import PipelineRun
from flows.record import Record
from flows.tasks import run_step
from flows.tracking import Tracker
from flows.workspace import Workspace
from stages.contract import StageResult


@flow(name="posttrain", validate_parameters=False, persist_result=False)
def posttrain(config: dict[str, Any], overrides: Sequence[str] = (), checked: bool = False) -> dict[str, Any]:
    """Run a pipeline.

    Args:
        config: The composed configuration as plain values.
        overrides: What was asked for on the command line; recorded, not interpreted.
        checked: Whether `Workspace.check` has seen this configuration just now.

    Returns:
        The run's record, as written to `pipeline.json`.
    """
    run = open_run(config, overrides, checked)
    try:
        stopped = run_steps(run)
    except BaseException as error:
        run.close("failed", error)
        raise
    run.close("stopped" if stopped else "completed")
    return run.record.values


def run_steps(run: PipelineRun) -> bool:
    """Do one step after the other; returns whether one of them stopped the pipeline."""
    for name, step in run.config.steps.items():
        if run.workspace.is_due(name, run.results):
            task = run_step.with_options(name=step.stage, task_run_name=name)
            state: Any = task(run, run.workspace.inputs(name, run.results), return_state=True)
            result: StageResult = state.result()
            run.workspace.finish(name, result, run.results)
            if result.verdict == "stop":
                return True
    return False


def open_run(config: dict[str, Any], overrides: Sequence[str], checked: bool = False) -> PipelineRun:
    """Resolve everything that needs no model, and open the run's record and its tracking run."""
    parsed = load_run(config)
    workspace = Workspace(parsed)
    if not checked:
        workspace.check()
    workspace.find_models()
    record = Record(parsed, workspace.runs_dir, overrides)
    tracker = Tracker(parsed.sections.tracking, workspace.runs_dir)
    parent = tracker.start(record.id, tags={"ratchet.pipeline": record.id})
    record.update(mlflow_run=parent, prefect_run=flow_run.get_id())
    console = Console()
    for line in workspace.notices():
        console.say(line)
    return PipelineRun(config=parsed, workspace=workspace, record=record, tracker=tracker, console=console)
