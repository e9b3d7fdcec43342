"""Sweeps and what runs their cells: the sections `sweep` and `orchestration`, and the budget that cells share."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from conf.errors import ConfigError
from conf.options import option
from conf.steps import Step
from conf.training import ReinforceConfig


class Runner(enum.Enum):
    """Prefect's task runner for what runs beside another: the cells of a sweep."""

    processes = "processes"
    ray = "ray"


@dataclass
class RayConfig:
    """Which Ray cluster; what a cell takes of it is in `hardware.ray`."""

    address: str | None = option(None, outcome=False)
    """`HOST:PORT` of its head, or `auto` for the cluster that this machine belongs to; when absent `RAY_ADDRESS`, then
    `auto`."""


@dataclass
class OrchestrationConfig:
    """Who runs what runs side by side."""

    runner: Runner = Runner.processes
    """`processes`: processes of this machine; `ray`: an existing Ray cluster (extra `ratchet[ray]`)."""
    ray: RayConfig = field(default_factory=RayConfig)
    """Which cluster."""
    branches: bool = False
    """Whether steps of one pipeline that do not wait for each other are made side by side (not within a sweep)."""
    max_workers: int | None = option(None, ge=1, outcome=False)
    """Cells at once; when absent as many as the devices allow: cores by `hardware.threads`, or GPUs; on Ray as many as
    its nodes have room for at the start."""


@dataclass
class BudgetConfig:
    """The same budget of generated text for every `reinforce` step, whatever its group size.

    It decides `max_steps`: as many whole optimiser steps as fit, and at least one must. A step generates
    `batch_size x grad_accum x group_size` completions; what `difficulty` and `resample` sample comes on top.
    """

    completions: int | None = option(None, ge=1)
    """Completions in all."""
    tokens: int | None = option(None, ge=1)
    """Tokens in all, every completion counted with its longest length, `max_new_tokens`; most are shorter."""

    def __post_init__(self) -> None:
        """Keep it one budget."""
        if self.completions is not None and self.tokens is not None:
            raise ConfigError("tokens: goes without completions; name one of them")

    @property
    def is_set(self) -> bool:
        """Whether there is one."""
        return self.completions is not None or self.tokens is not None


@dataclass
class SweepConfig:
    """What `ratchet run -m` does beside running every cell."""

    budget: BudgetConfig = field(default_factory=BudgetConfig)
    """The same budget of generated text for every cell (and for a run without `-m`)."""
    ship_winner: bool = option(False, outcome=False)
    """Whether the winner, if there is one, goes to the gate, and is registered when that says ship."""


def with_budget(settings: Mapping[str, Any], steps: Mapping[str, Step], budget: BudgetConfig) -> dict[str, Any]:
    """Settings in which every reinforce step has as many optimiser steps as the budget pays for.

    Raises:
        ConfigError: It does not pay for one, or a step pins `max_steps`.
    """
    if not budget.is_set:
        return dict(settings)
    found = dict(settings)
    for name, own in settings.items():
        if isinstance(own, ReinforceConfig):
            if "max_steps" in steps[name].set:
                raise ConfigError(
                    f"pipeline.{name}.set.max_steps: sweep.budget decides the number of steps; leave one of them out"
                )
            found[name] = replace(own, max_steps=_steps(name, own, budget))
    return found


def unspent(settings: Mapping[str, Any], budget: BudgetConfig) -> str:
    """In words, what every reinforce step leaves of a budget, as it does not pay for another optimiser step."""
    if not budget.is_set:
        return ""
    costs = {name: _cost(own, budget) for name, own in settings.items() if isinstance(own, ReinforceConfig)}
    left = [f"{given % needed} {unit} of {name!r}" for name, (needed, given, unit) in costs.items() if given % needed]
    return ", ".join(left)


def _steps(name: str, own: ReinforceConfig, budget: BudgetConfig) -> int:
    needed, given, unit = _cost(own, budget)
    if given < needed:
        raise ConfigError(
            f"sweep.budget.{unit}: {given} do not pay for one optimiser step of {name!r}, which takes up to {needed} "
            f"{unit}; raise the budget, or lower batch_size, grad_accum or group_size"
        )
    return given // needed


def _cost(own: ReinforceConfig, budget: BudgetConfig) -> tuple[int, int, str]:
    """What an optimiser step takes, what is given, and of what."""
    completions = own.batch_size * own.grad_accum * own.group_size
    if budget.tokens is not None:
        return completions * own.max_new_tokens, budget.tokens, "tokens"
    assert budget.completions is not None
    return completions, budget.completions, "completions"
