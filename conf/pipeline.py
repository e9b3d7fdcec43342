"""The pipeline: a DAG of named steps, parsed and checked as a whole before anything runs."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from conf.checks import with_checks
from conf.errors import ConfigError
from conf.loader import load, unknown_key
from conf.steps import ALIASES, BASE, STAGES, Step, leads_out, named_edge, step_settings

NAME = re.compile(r"[\w-]+")
"""What a step and a suite may be called: metrics bear their names, and MLflow refuses all of a batch with one other."""


def load_pipeline(values: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Step]:
    """Parse and check a pipeline; returns the steps in an order in which they can run.

    Args:
        values: The `pipeline` section: step names to mappings.
        sections: The stages' sections as plain mappings, to check every step's `set` against.

    Raises:
        ConfigError: Names the step and what is wrong with it.
    """
    steps = {str(name): _load_step(str(name), value, values) for name, value in values.items()}
    steps = _without_skipped(steps)
    if not steps:
        raise ConfigError("pipeline: has no steps; choose one, e.g. experiment=demo")
    for name, step in steps.items():
        _check_step(name, step, steps)
        step_settings(name, step, sections[step.stage])
    steps = with_checks(steps, sections)
    return {name: steps[name] for name in _in_order(steps)}


def _load_step(name: str, value: Any, steps: Mapping[str, Any]) -> Step:
    if name in (BASE, *ALIASES) or not NAME.fullmatch(name):
        raise ConfigError(f"pipeline.{name}: a step cannot be called that; use letters, digits, _ and -")
    if isinstance(value, Mapping) and dict(value) == {"skip": True}:
        raise ConfigError(unknown_key(name, [str(other) for other in steps if other != name], "pipeline"))
    step = load(Step, value, f"pipeline.{name}")
    if step.stage not in STAGES:
        raise ConfigError(f"pipeline.{name}.stage: unknown stage {step.stage!r}; known: {', '.join(sorted(STAGES))}")
    if not (
        step.data is None
        or isinstance(step.data, str)
        or (isinstance(step.data, Mapping) and set(step.data) == {"from"} and isinstance(step.data["from"], str))
    ):
        raise ConfigError(
            f"pipeline.{name}.data: expected the name of a data source, or {{from: <step>}}; got {step.data!r}"
        )
    return step


def _without_skipped(steps: Mapping[str, Step]) -> dict[str, Step]:
    """Close the gaps that skipped steps leave."""

    def origin(name: str, seen: tuple[str, ...] = ()) -> str:
        if name not in steps or not steps[name].skip or name in seen:
            return name
        return origin(steps[name].start, (*seen, name))

    kept = {}
    for name, step in steps.items():
        if step.skip:
            continue
        if step.data_step in steps and steps[str(step.data_step)].skip:
            raise ConfigError(f"pipeline.{name}.data: takes its rows from {step.data_step!r}, which is left out")
        kept[name] = replace(
            step,
            start=origin(step.start),
            baseline=origin(step.baseline) if step.baseline else None,
            anchor=origin(step.anchor) if step.anchor else None,
            models=[origin(model) for model in step.models],
            after=[other for other in step.after if not (other in steps and steps[other].skip)],
        )
    return kept


_TAKEN_WITH = {
    "data": "data",
    "reward": "reward",
    "baseline": "suites",
    "anchor": "baseline",
    "models": "suites",
    "suites": "suites",
}
"""Which keys of a step do something only for stages with which need; elsewhere they would be silently ignored."""


def _check_step(name: str, step: Step, steps: Mapping[str, Step]) -> None:
    _check_model_names(name, step)
    for other in step.needs():
        if other not in steps:
            raise ConfigError(f"pipeline.{name}: there is no step {other!r}; steps: {', '.join(steps)}")
    if step.data_step and not STAGES[steps[step.data_step].stage].makes_data:
        raise ConfigError(
            f"pipeline.{name}.data: step {step.data_step!r} ({steps[step.data_step].stage}) makes no rows"
        )
    for key, need in _TAKEN_WITH.items():
        if getattr(step, key) and need not in STAGES[step.stage].needs:
            raise ConfigError(f"pipeline.{name}.{key}: a {step.stage} step takes no {key}")
    for check in ("audit", "probe"):
        if not getattr(step, check) and step.stage != "reinforce":
            raise ConfigError(f"pipeline.{name}.{check}: only a reinforce step has one before it")
    for need in STAGES[step.stage].needs:
        if need != "suites" and getattr(step, need) is None:
            raise ConfigError(f"pipeline.{name}: a {step.stage} step needs {need!r}")


_MODEL_NAME = re.compile(r"[\w./-]+")


def _check_model_names(name: str, step: Step) -> None:
    """A model is given a name only where the scores show it, and only one that has none; no two are called the same."""
    for key in ("baseline", "anchor"):
        if ":" in (getattr(step, key) or ""):
            raise ConfigError(f"pipeline.{name}.{key}: is called {key} in the scores; leave its name out")
    for edge in (step.start, *step.models):
        called, what = named_edge(edge)
        if ":" in edge and (not _MODEL_NAME.fullmatch(called) or what in ALIASES or not leads_out(what)):
            raise ConfigError(
                f"pipeline.{name}: expected NAME:run/<id>, with NAME of letters, digits, _ . - and /; got {edge!r}"
            )
    found: dict[str, str] = {}
    for called, what in map(named_edge, step.models):
        if found.setdefault(called, what) != what:
            raise ConfigError(f"pipeline.{name}.models: {found[called]} and {what} are both called {called!r}")


def _in_order(steps: Mapping[str, Step]) -> Iterator[str]:
    """Topological order that keeps the order of declaration where it can."""
    done: list[str] = []
    while len(done) < len(steps):
        ready = [
            name for name, step in steps.items() if name not in done and all(need in done for need in step.needs())
        ]
        if not ready:
            rest = " -> ".join(name for name in steps if name not in done)
            raise ConfigError(f"pipeline: the steps {rest} wait for each other in a cycle")
        done.append(ready[0])
        yield ready[0]
