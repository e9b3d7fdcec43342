"""Rows from a task of reasoning-gym: `gym:<task>`, its settings being the `args` of the data section.

A row is the library's entry (`question`, `answer`, `metadata`) with the task's name and settings, which is what the
reward `gym` needs. Rows are written as JSON, where a tuple becomes a list and a key becomes text; so every row is
scored here with its own answer, and a task that does not survive that is refused.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from conf.errors import ConfigError, UserError
from rewards.contract import RewardError
from rewards.gym import make_dataset, require_library, score_answer
from stages.sources.record import Record, numbered

PREFIX = "gym:"


def read_gym(source: str, arguments: Mapping[str, Any]) -> Iterator[Record]:
    """The rows of a task, in the library's order.

    Args:
        source: `gym:<task>`.
        arguments: `size`, `seed` (0 when absent) and the task's other settings.

    Raises:
        UserError: The library is not installed, there is no such task, its settings are wrong, or an answer of its own
            does not get full marks from its scorer.
    """
    task, settings = source.removeprefix(PREFIX), _settings(source, arguments)
    try:
        dataset = make_dataset(task, settings)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    for record in numbered(source, _rows(source, dataset, task, settings)):
        _check(record)
        yield record


def gym_identity(source: str, arguments: Mapping[str, Any]) -> list[Any]:
    """What determines the rows: the task, its settings and seed, and the version of the library.

    Raises:
        UserError: The library is not installed.
    """
    try:
        require_library()
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    return [source, _settings(source, arguments), version("reasoning-gym")]


def _settings(source: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """With the seed that the library would draw anew each time."""
    settings = {"seed": 0, **arguments}
    if type(settings["seed"]) is not int:
        raise ConfigError(f"{source}: args.seed: expected a whole number, got {settings['seed']!r}")
    return settings


def _rows(source: str, dataset: Any, task: str, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        for entry in dataset:
            yield {**entry, "task": task, "config": settings}
    except Exception as error:
        raise UserError(f"{source}: the library fails with {type(error).__name__}: {error}") from error


def _check(record: Record) -> None:
    row = record.values
    if not isinstance(row["answer"], str):
        raise UserError(f"{record.place}: {row['task']!r} has no answer of its own to learn or to check; take another")
    try:
        score = score_answer(row["task"], row["config"], row["answer"].strip(), row)
    except RewardError as error:
        raise UserError(f"{record.place}: {error}") from error
    if score != 1:
        raise UserError(
            f"{record.place}: the scorer of {row['task']!r} gives its own answer {score:g}, not 1, once the row is "
            "JSON; take another task"
        )
