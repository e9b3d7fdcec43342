"""What stands before every `reinforce` step: an audit of its rewards and a probe of the model it starts from.

Both are ordinary steps, added here unless the pipeline has them already or the step says `audit: off`, `probe: off`.
The audit needs no model, so it comes before everything else; the probe hands the model on, and may hand on another.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conf.errors import ConfigError
from conf.measuring import ProbeConfig
from conf.steps import STAGES, Step, step_settings

Sections = Mapping[str, Mapping[str, Any]]

ADDED = ("audit", "probe")
"""The stages of steps that may have been added here."""

_FROM_REINFORCE = {"audit": ("max_new_tokens",), "probe": ("max_new_tokens", "temperature")}
"""Settings that a check takes from the step it stands before, where it has none of its own."""


def with_checks(steps: Mapping[str, Step], sections: Sections) -> dict[str, Step]:
    """The pipeline with an audit and a probe before every reinforce step that asks for them.

    Raises:
        ConfigError: A step has the name that a check would get, or `probe.otherwise` names no step it could take.
    """
    audits: dict[str, Step] = {}
    rest: dict[str, Step] = {}
    for name, step in steps.items():
        if step.stage == "reinforce":
            own = _audits_of(step, steps)
            if step.audit and own:
                step = replace(step, after=[*step.after, *own])
            elif step.audit:
                new = f"{name}_audit"
                audits[_free(new, steps)] = Step(stage="audit", data=step.data, reward=step.reward)
            if step.probe and not _starts_at_probe(step, steps):
                new = f"{name}_probe"
                rest[_free(new, steps)] = Step(stage="probe", start=step.start, data=step.data, reward=step.reward)
                step = replace(step, start=new)
        rest[name] = step
    checked = {**audits, **rest}
    checked = {name: _completed(name, step, checked, sections) for name, step in checked.items()}
    probes = {name: step for name, step in checked.items() if step.stage == "probe"}
    return _with_detours(
        checked, otherwise({name: step_settings(name, step, sections["probe"]) for name, step in probes.items()})
    )


def otherwise(settings: Mapping[str, Any]) -> dict[str, str]:
    """For every probe among the steps' settings that names one, the step it takes where it finds too little success."""
    probes = {name: own for name, own in settings.items() if isinstance(own, ProbeConfig)}
    return {name: own.otherwise for name, own in probes.items() if own.otherwise is not None}


def with_success(settings: Mapping[str, Any], steps: Mapping[str, Step], probe: ProbeConfig) -> dict[str, Any]:
    """Settings in which `difficulty` means by success what the probe does, where it does not say itself."""
    result = dict(settings)
    for name, step in steps.items():
        difficulty = getattr(settings[name], "difficulty", None)
        if difficulty is None or not difficulty.leaves_out:
            continue  # nothing is measured, so what success means must not change the step's fingerprint
        if difficulty.success is None and difficulty.success_at is None:
            asked = settings[step.start] if _starts_at_probe(step, steps) else probe
            told = replace(difficulty, success=asked.success, success_at=asked.success_at)
            result[name] = replace(settings[name], difficulty=told)
    return result


def _audits_of(step: Step, steps: Mapping[str, Step]) -> list[str]:
    """The audit steps that look at the same rows and rewards as a reinforce step, which waits for them."""
    same = (step.data, step.reward)
    return [name for name, other in steps.items() if other.stage == "audit" and (other.data, other.reward) == same]


def _starts_at_probe(step: Step, steps: Mapping[str, Step]) -> bool:
    return step.start in steps and steps[step.start].stage == "probe"


def _free(name: str, steps: Mapping[str, Step]) -> str:
    if name in steps:
        raise ConfigError(f"pipeline.{name}: is the name of a check that is added by itself; call the step otherwise")
    return name


def _completed(name: str, step: Step, steps: Mapping[str, Step], sections: Sections) -> Step:
    """A check with the settings it takes from the reinforce step it stands before."""
    served = [
        (other_name, other)
        for other_name, other in steps.items()
        if other.stage == "reinforce"
        and (other.start == name if step.stage == "probe" else bool(_audits_of(other, {name: step})))
    ]
    if step.stage not in _FROM_REINFORCE or not served:
        return step
    own = step_settings(name, step, sections[step.stage])
    theirs = step_settings(*served[0], sections["reinforce"])
    taken = {key: getattr(theirs, key) for key in _FROM_REINFORCE[step.stage] if getattr(own, key) is None}
    if step.stage == "probe" and not own.group_sizes:
        taken["group_sizes"] = [theirs.group_size, 2 * theirs.group_size]
    return replace(step, set={**taken, **step.set})


def _before(name: str, steps: Mapping[str, Step]) -> set[str]:
    """All steps that a step needs, directly or through others."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = {need for need in steps[waiting.pop()].needs() if need in steps} - found
        found |= new
        waiting += new
    return found


def _with_detours(steps: Mapping[str, Step], detours: Mapping[str, str]) -> dict[str, Step]:
    """Order a detour after the probe that may ask for it, and what starts at the probe after the detour."""
    result = dict(steps)
    for probe, detour in detours.items():
        if detour not in steps:
            raise ConfigError(f"probe.otherwise: there is no step {detour!r}; steps: {', '.join(steps)}")
        if probe in steps and detour in _before(probe, steps):
            raise ConfigError(
                f"probe.otherwise: {detour!r} comes before {probe!r} anyway; name a step of its own for this case, "
                f"e.g. another sft with `start: {steps[probe].start}`"
            )
        if not STAGES[steps[detour].stage].trains:
            raise ConfigError(
                f"probe.otherwise: step {detour!r} ({steps[detour].stage}) trains nothing; name one that does, e.g. sft"
            )
        takers = [name for name, step in steps.items() if detour in step.needs()]
        if takers:
            raise ConfigError(
                f"pipeline.{takers[0]}: {detour!r} runs only when {probe!r} asks for it, so no step can count on it; "
                "name a step of its own in probe.otherwise (what starts at the probe goes on from its model)"
            )
        result[detour] = replace(result[detour], after=[*result[detour].after, probe])
        for name, step in result.items():
            if probe in step.model_edges and name != detour:
                result[name] = replace(step, after=[*step.after, detour])
    return result
