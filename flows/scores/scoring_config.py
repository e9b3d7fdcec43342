"""Which configuration models are scored by: that of the run they come from, with suites of conf/suite besides."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conf.errors import UserError
from conf.measuring import EvaluateConfig
from conf.run import RunConfig, load_run
from conf.steps import ALIASES, BASE
from flows.compose import compose_values
from flows.references import find_pipeline, find_run, latest_with
from flows.store import Store
from stages.identity import is_local

STEP = "evaluate"
"""The only step of such a configuration."""

_SCORED_BY = ("evaluate", "gate")
_ASIDE = {"recheck": 0, "drift_rows": 0, "n_samples": 0}
"""Of scoring, what is no score."""


def is_run(runs_dir: Path, text: str) -> bool:
    """Whether a text names a pipeline run, a step of one, or begins the id of a store entry."""
    return bool(find_pipeline(runs_dir, text.partition("/")[0]) or Store(runs_dir).find(text))


def is_reference(text: str) -> bool:
    """Whether a text can be the id of a base model."""
    return "/" in text or text.startswith(("embedded:", "tiny:")) or is_local(text)


def record_of(runs_dir: Path, text: str) -> Mapping[str, Any] | None:
    """The record of a run, or of the latest one that has a store entry; None for what can be a model but is no run.

    Raises:
        UserError: It can be neither.
    """
    if text == BASE or text in ALIASES or (is_reference(text) and not is_run(runs_dir, text)):
        return None
    run = find_run(runs_dir, text)
    return run.record if run.record is not None else latest_with(runs_dir, run.entry)


def default_values(text: str, runs_dir: Path, config_dir: str | None) -> dict[str, Any]:
    """The configuration of a model that no pipeline has left."""
    values = compose_values([], config_dir)
    if text == BASE or text in ALIASES:
        return values
    if is_run(runs_dir, text):
        model = dataclasses.asdict(find_run(runs_dir, text).model().config)
        return {**values, "model": model}
    return {**values, "model": {"id": text}} if is_reference(text) else values


def own_suites(values: Mapping[str, Any]) -> list[str]:
    """The suites that the pipeline scores, else all it has."""
    named = [suite for step in values["pipeline"].values() for suite in step.get("suites") or []]
    everything = any(step.get("stage") in _SCORED_BY and not step.get("suites") for step in values["pipeline"].values())
    return list(values["suite"]) if everything or not named else list(dict.fromkeys(named))


def scoring_config(values: dict[str, Any], suites: Sequence[str], config_dir: str | None, text: str) -> RunConfig:
    """A configuration whose only step scores the suites.

    Args:
        values: The configuration that is taken.
        suites: Names of suites, of that configuration or of conf/suite; if none, the configuration's own.
        config_dir: The user's own configuration.
        text: What it was taken for, for messages.

    Raises:
        UserError: There is no suite, or none of that name.
    """
    names = list(dict.fromkeys(suites)) or own_suites(values)
    if not names:
        raise UserError(
            f"--suite: name the suites to score, e.g. --suite arithmetic: {text} is no run that has suites of its own"
        )
    values = _with_suites(values, [name for name in names if name not in values["suite"]], config_dir)
    step = {"stage": STEP, "start": BASE, "baseline": BASE, "suites": names}
    return load_run({**values, "pipeline": {STEP: step}, STEP: {**_scored_by(values), **_ASIDE}})


def _with_suites(values: dict[str, Any], names: Sequence[str], config_dir: str | None) -> dict[str, Any]:
    """Add suites of conf/suite with their data and rewards; what the configuration has itself stays as it is."""
    if not names:
        return values
    choice = f"suite=[{','.join(names)}]"
    suites = compose_values([choice], config_dir)["suite"].values()
    data = {suite["data"] for suite in suites if suite.get("data")}
    rewards = {suite[key] for suite in suites for key in ("reward", "information") if suite.get(key)}
    groups = [f"{group}=[{','.join(sorted(found))}]" for group, found in (("data", data), ("reward", rewards))]
    composed = compose_values([choice, *groups], config_dir)
    return {**values, **{group: {**composed[group], **values[group]} for group in ("data", "reward", "suite")}}


def _scored_by(values: Mapping[str, Any]) -> dict[str, Any]:
    """How the pipeline's own evaluation, or gate, scores: the same batches give the same scores, which are known."""
    fields = [field.name for field in dataclasses.fields(EvaluateConfig)]
    steps = values["pipeline"].values()
    step: Mapping[str, Any] = next((step for step in steps if step.get("stage") in _SCORED_BY), {"stage": STEP})
    settings = {**values.get(step["stage"], {}), **(step.get("set") or {})}
    return {name: value for name, value in settings.items() if name in fields}
