"""Reward `gym`: the own scorer of the reasoning-gym task that a row comes from (extra `ratchet[gym]`).

The library is imported when the first row is scored, which takes a second or two. Several of its scorers run the reply
as Python code (`eval`, or sympy's parser, which evaluates): those need the user's word.
"""

import difflib
import functools
import importlib.util
import json
import re
import traceback
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from conf.code_rewards import GymConfig
from conf.errors import ConfigError
from conf.loader import unknown_key
from rewards.contract import Reward, RewardError, Sample, Value, shown

COLUMNS = ("question", "answer", "metadata", "task", "config")
"""What a row of a gym task has: the library's entry, and the task's name and settings."""

RUNS_REPLIES = frozenset(
    {
        "binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication", "puzzle24",
        "simple_integration", "spiral_matrix", "string_insertion",
    }
)  # fmt: skip
"""Tasks whose scorer runs a reply as Python code (reasoning-gym 0.1.25; a test looks for more)."""

_COMPOSITE = "composite"


def gym(config: GymConfig) -> Reward:
    """What the task's scorer says of the answer in the completion; 0 when `tag` is set and there is no such tag.

    Raises:
        ConfigError: reasoning-gym is not installed.
    """
    require_library()
    tagged = config.tag and re.compile(f"<{re.escape(config.tag)}>(.*?)</{re.escape(config.tag)}>", re.DOTALL)

    def reward(sample: Sample) -> Value:
        task, settings, entry = _of_row(sample.row)
        if task in RUNS_REPLIES and not config.runs_replies:
            raise RewardError(f"the scorer of {task!r} runs replies as Python code; set runs_replies: true to allow it")
        answers = tagged.findall(sample.completion) if tagged else [sample.completion]
        if not answers:
            return Value(0.0, f"has no <{config.tag}>...</{config.tag}>")
        score = score_answer(task, settings, answers[-1].strip(), entry)
        return Value(score if config.partial else float(score == 1), f"{task}: the scorer says {score:g}")

    return reward


def score_answer(task: str, settings: Mapping[str, Any], answer: str, entry: Mapping[str, Any]) -> float:
    """What the library's scorer says of an answer to one of its entries.

    Raises:
        RewardError: There is no such scorer, or it raises; a reply it was not written for is no 0.
    """
    try:
        scorer = _scorer(task, json.dumps(settings, sort_keys=True))
    except ConfigError as error:
        raise RewardError(str(error)) from error
    try:
        return float(scorer.score_answer(answer, entry))
    except Exception as error:
        raise RewardError(
            f"the scorer of {task!r} fails on {shown(answer, 40)}: {type(error).__name__}: {error}"
        ) from error


def make_dataset(task: str, settings: Mapping[str, Any]) -> Any:
    """The library's data set for a task.

    Raises:
        ConfigError: The library is not installed, there is no such task, or its settings are wrong.
    """
    require_library()
    from reasoning_gym.factory import DATASETS, create_dataset

    if task == _COMPOSITE:
        raise ConfigError(f"{task!r} mixes tasks; give each task a data source of its own")
    if task not in DATASETS:
        close = difflib.get_close_matches(task, DATASETS, n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"there are {', '.join(sorted(DATASETS))}"
        raise ConfigError(f"reasoning-gym has no task {task!r}; {hint}")
    known = [field.name for field in fields(DATASETS[task][1])]
    for key in settings:
        if key not in known:
            raise ConfigError(unknown_key(key, known, "args"))
    try:
        return create_dataset(task, **settings)
    except Exception as error:
        raise ConfigError(f"args: {task!r} refuses {shown(dict(settings))}: {_reason(error)}") from error


def require_library() -> None:
    """Find out whether the library is there, without importing it.

    Raises:
        ConfigError: It is not.
    """
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ConfigError('needs the library reasoning-gym: pip install "ratchet[gym]"')


@functools.lru_cache(maxsize=64)
def _scorer(task: str, settings: str) -> Any:
    """One data set per task and settings: some scorers look at the settings."""
    return make_dataset(task, json.loads(settings))


def _of_row(row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], dict[str, Any]]:
    missing = [column for column in COLUMNS if column not in row]
    if missing:
        raise RewardError(
            f"the row has no {', '.join(map(repr, missing))}; this reward takes rows of a source gym:<task>"
        )
    return row["task"], row["config"], {name: row[name] for name in ("question", "answer", "metadata")}


def _reason(error: Exception) -> str:
    """The library's own words; many of its checks are assertions without a message, whose code says it."""
    frames = traceback.extract_tb(error.__traceback__)
    return str(error) or (frames[-1].line if frames else None) or type(error).__name__
