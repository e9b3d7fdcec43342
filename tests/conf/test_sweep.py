"""The budget of a sweep: the same number of completions, or tokens, whatever the group size."""

from typing import Any

import pytest

from conf.errors import ConfigError
from conf.loader import dump
from conf.run import RunConfig, check_pins, load_run
from conf.sweep import BudgetConfig, unspent


def loaded(budget: dict[str, int], step: dict[str, Any] | None = None, **reinforce: Any) -> RunConfig:
    """A configuration with a reinforce step under a budget."""
    values = {
        "sweep": {"budget": budget},
        "data": {"d": {"source": "d.csv"}},
        "reward": {"r": {"exact": {"type": "exact"}}},
        "pipeline": {"r": {"stage": "reinforce", "data": "d", "reward": "r", **(step or {})}},
        "reinforce": {"batch_size": 2, "grad_accum": 3, "max_new_tokens": 10, "max_steps": 7, **reinforce},
    }
    return load_run(values)


def steps(budget: dict[str, int], step: dict[str, Any] | None = None, **reinforce: Any) -> int | None:
    """Optimiser steps of a reinforce step under a budget."""
    config = loaded(budget, step, **reinforce)
    again = load_run(dump(config.sections))  # as a process of its own reads it
    assert again.settings["r"].max_steps == config.settings["r"].max_steps
    found: int | None = config.settings["r"].max_steps
    return found


@pytest.mark.parametrize(
    ("budget", "group_size", "expected"),
    [
        ({}, 4, 7),
        ({"completions": 240}, 4, 10),
        ({"completions": 240}, 8, 5),
        ({"completions": 287}, 8, 5),  # as many whole steps as it pays for
        ({"completions": 48}, 8, 1),
        ({"tokens": 2400}, 4, 10),
        ({"tokens": 2400}, 8, 5),
    ],
)
def test_steps_adapt_to_the_group_size(budget, group_size, expected):
    assert steps(budget, group_size=group_size) == expected


@pytest.mark.parametrize(
    ("budget", "left"),
    [
        ({}, ""),
        ({"completions": 240}, ""),
        ({"completions": 287}, "47 completions of 'r'"),
        ({"tokens": 2401}, "1 tokens of 'r'"),
    ],
)
def test_what_is_left_of_a_budget_is_known(budget, left):
    assert unspent(loaded(budget, group_size=8).settings, BudgetConfig(**budget)) == left


def test_a_step_has_the_budget_with_its_own_settings():
    assert steps({"completions": 240}, {"set": {"group_size": 2}}, group_size=4) == 20


@pytest.mark.parametrize(
    ("budget", "step", "message"),
    [
        ({"completions": 23}, {}, "sweep.budget.completions: 23 do not pay for one optimiser step of 'r', which takes"),
        (
            {"tokens": 239},
            {},
            "sweep.budget.tokens: 239 do not pay for one optimiser step of 'r', which takes up to 240",
        ),
        ({"completions": 0}, {}, "sweep.budget.completions: must be at least 1"),
        ({"completions": 9, "tokens": 9}, {}, "sweep.budget.tokens: goes without completions"),
        ({"completions": 240}, {"set": {"max_steps": 2}}, r"pipeline.r.set.max_steps: sweep.budget decides"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(budget, step, message):
    with pytest.raises(ConfigError, match=message):
        steps(budget, step, group_size=4)


def test_a_number_of_steps_that_a_budget_would_silence_is_refused():
    check_pins(loaded({}), ["reinforce.max_steps"])
    check_pins(loaded({"completions": 240}), ["reinforce.beta"])
    with pytest.raises(ConfigError, match=r"^reinforce.max_steps: sweep.budget decides the number of steps"):
        check_pins(loaded({"completions": 240}), ["reinforce.max_steps"])
