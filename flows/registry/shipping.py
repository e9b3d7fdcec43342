"""Shipping: what a gate lets through becomes the champion of the registry, unless another has become it meanwhile."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from mlflow.exceptions import MlflowException
from requests import RequestException
from sqlalchemy.exc import SQLAlchemyError

from conf.errors import OutageError
from conf.steps import ALIASES, BASE
from flows.mlflow_connection import first_line
from flows.registry.lineage import gate_tags, lineage_tags, reasons, record_tags
from flows.registry.registered_model import Registry
from flows.registry.registration import Candidate, register
from flows.registry.versions import CANDIDATE, ID, IDENTITY, WITHDRAWN, Version
from flows.workspace import StepInputs
from stages.contract import StageResult

if TYPE_CHECKING:
    from flows.execute import PipelineRun

MLFLOW_ERRORS = (MlflowException, RequestException, SQLAlchemyError)
"""What MLflow raises when it, or the database under it, is away."""


def ship(run: "PipelineRun", inputs: StepInputs, result: StageResult) -> StageResult:
    """Register the model that a gate lets through, and make it the champion.

    Any other result is returned as it is. Done again, also for a gate whose result was in the store, it changes
    nothing; what was withdrawn by a person stays so.

    Returns:
        The result; with another verdict where the model does not ship after all, and the reason in its report.

    Raises:
        OutageError: MLflow is away. The same command registers the model when it is back.
        Interrupted: The run was asked to end while it waited for another process that ships.
    """
    if result.verdict != "ship" or not getattr(inputs.settings, "register", False):
        return result
    tracker = run.mirror.tracker
    registry = Registry(tracker.uri, run.config.sections.registry.name)
    if not tracker.attempt(lambda: None, insist=True):
        raise _outage(inputs.name, registry, "see above")
    try:
        with registry.locked(_waiting(run, inputs.name, registry)):
            verdict, line = _ship(run, inputs, result, registry)
    except MLFLOW_ERRORS as error:
        registry.forget()
        raise _outage(inputs.name, registry, first_line(error)) from error
    run.console.say(f"{inputs.name}: {line}")
    told = replace(result, verdict=verdict, report=f"{result.report}\n\n{line}".strip())
    run.record.update_step(inputs.name, report=told.report)
    return told


def _ship(run: "PipelineRun", inputs: StepInputs, result: StageResult, registry: Registry) -> tuple[str, str]:
    """What has become of the verdict, and why, in words."""
    entry = run.workspace.entry(inputs)
    made, champion = next(iter(registry.tagged(ID, entry.id)), None), registry.champion()
    if champion and champion.tags.get(IDENTITY) == result.model.identity:
        _record(run, inputs.name, champion)
        return "ship", f"{champion} is the champion" + ("" if made == champion else ", and has these weights")
    same = (each for each in registry.tagged(IDENTITY, result.model.identity) if each.state != CANDIDATE)
    last = next(same, None)
    if last and last.state == WITHDRAWN:
        return "hold", f"{last} has these weights, and was withdrawn by a person; `ratchet promote` ships it again"
    if made and made.state != CANDIDATE and champion is None:
        return "hold", f"{made} has shipped, but somebody removed the alias since; `ratchet promote` ships it again"
    if made and made.state != CANDIDATE:
        _record(run, inputs.name, made)
        return "ship", f"{made} has shipped; now it is {champion}"
    if refusal := _outdated(run, inputs, champion):
        return "inconclusive", refusal
    candidate, place = _candidate(run, inputs, result), run.workspace
    version = register(registry, run.mirror.tracker, candidate, place.hardware, place.runs_dir)
    if refusal := _outdated(run, inputs, registry.champion()):  # another machine's lock is not ours
        return "inconclusive", refusal
    registry.promote(version)
    _record(run, inputs.name, version)
    return "ship", f"shipped: {version} is the champion" + (f", after version {champion.number}" if champion else "")


def _candidate(run: "PipelineRun", inputs: StepInputs, result: StageResult) -> Candidate:
    entry, values = run.workspace.entry(inputs), run.record.values
    words = "\n".join(f"- {reason}" for reason in reasons(entry))
    return Candidate(
        id=entry.id,
        model=result.model,
        tags={
            **lineage_tags(result.model, run.workspace.runs_dir, run.workspace.models.aliases.original_tag),
            **record_tags(values),
            **gate_tags(entry),
        },
        description=f"The gate {inputs.name!r} of {values['id']} let it through:\n{words}"[:_LONGEST],
        parent=values["mlflow_run"],
    )


_LONGEST = 3000
"""Characters of a description; MLflow keeps 5000, and people add to it."""


def _outdated(run: "PipelineRun", inputs: StepInputs, champion: Version | None) -> str | None:
    """Why a decision is none about the present champion; None when it is, or there is no champion."""
    if champion is None or champion.tags.get(IDENTITY) == inputs.models["baseline"].identity:
        return None
    edge, aliases = str(inputs.step.baseline), run.workspace.models.aliases
    version = aliases.version(edge) if edge in ALIASES else aliases.base_version if edge == BASE else None
    if version and (version.name, version.number) == (champion.name, champion.number):
        return None
    stand_in = run.config.sections.registry.fallback if edge in ALIASES else edge
    compared = f"version {version.number}" if version else stand_in
    again = "run again" if edge == "champion" else "set its baseline to champion and run again"
    return (
        f"not shipped: the champion is {champion}, and this was compared with {compared}; {again}, scores that are "
        "known are reused"
    )


def _record(run: "PipelineRun", step: str, version: Version) -> None:
    registered = {**run.record.values["registered"], step: {"name": version.name, "version": version.number}}
    run.record.update(registered=registered)


def _waiting(run: "PipelineRun", step: str, registry: Registry) -> Callable[[], None]:
    """Tell once that another process ships, and see whether the run is asked to end."""
    told: list[str] = []

    def on_wait() -> None:
        if not told:
            told.append(f"{step}: waiting for another process, which ships as {registry.name}")
            run.console.say(told[0])
        run.stop.check(step)

    return on_wait


def _outage(step: str, registry: Registry, reason: str) -> OutageError:
    return OutageError(
        f"{step}: the gate says ship, but MLflow at {registry.uri} cannot be used ({reason}); the decision is kept, "
        "and the same command registers the model when MLflow answers"
    )
