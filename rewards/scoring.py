"""Calling rewards and summing them: the one place where values are checked and failures become errors."""

import json
import math
import numbers
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import ConfigError, UserError
from conf.rewards import OnError, RewardConfig
from rewards.contract import RewardError, Sample, Value, shown
from rewards.library import build

_LARGEST = 1e30
"""Weighted values beyond this leave float32, in which trainers hold them."""


@dataclass(frozen=True)
class Score:
    """What all rewards of a set say of one completion.

    Attributes:
        total: Sum of weight x value; NaN when a reward failed that has `on_error: stop`, so that it cannot pass for
            a score.
        values: Value by reward, unweighted; one that failed has its `error_value` here, or is absent.
        errors: Message by reward, for those that failed.
        explanations: Why, by reward, for those that did not fail.
    """

    total: float
    values: dict[str, float]
    errors: dict[str, str]
    explanations: dict[str, str]


class RewardSet:
    """Named, weighted rewards, ready to be called: patterns compiled, custom code imported, schemas checked.

    Args:
        configs: Settings by name (see `conf.rewards.load_rewards`).
        folder: What relative paths in the settings are relative to; the current directory when None.

    Raises:
        ConfigError: A file, schema or function that a reward needs cannot be used; names the reward.
    """

    def __init__(self, configs: Mapping[str, RewardConfig], folder: Path | None = None) -> None:
        self.configs = dict(configs)
        self._rewards = {}
        for name, config in configs.items():
            try:
                self._rewards[name] = build(config, folder)
            except ConfigError as error:
                raise ConfigError(f"reward {name!r}: {error}") from error

    def score(self, prompt: str, completion: str, reference: Any, row: Mapping[str, Any]) -> Score:
        """Score one completion. Never raises for what a reward does: failures are in `errors`."""
        sample = Sample(prompt, completion, reference, row)
        values: dict[str, float] = {}
        errors: dict[str, str] = {}
        explanations: dict[str, str] = {}
        for name in self._rewards:
            try:
                value = self._value(name, sample)
            except Exception as error:
                errors[name] = str(error) if isinstance(error, RewardError) else f"{type(error).__name__}: {error}"
                fallback = self.configs[name].error_value
                if self.configs[name].on_error is OnError.score and fallback is not None:
                    values[name] = fallback
            else:
                values[name], explanations[name] = value.value, value.explanation
        return Score(self._total(values), values, errors, explanations)

    def require(self, prompt: str, completion: str, reference: Any, row: Mapping[str, Any], where: str = "") -> Score:
        """Score one completion for a stage, which must not go on when a reward fails.

        The total is a finite number. Failures of rewards with `on_error: score` are in `errors`, to be counted.

        Args:
            prompt: The prompt as text.
            completion: The reply to judge.
            reference: The right answer, or None.
            row: The row's columns.
            where: What is being scored, for the message, e.g. `row 12`.

        Raises:
            RewardError: A reward with `on_error: stop` failed; says which, why and on what.
        """
        score = self.score(prompt, completion, reference, row)
        for name, message in score.errors.items():
            if name not in score.values:
                place = f"{where}: " if where else ""
                raise RewardError(
                    f"{place}reward {name!r} failed: {message} "
                    f"[prompt {shown(prompt)}, completion {shown(completion)}, reference {shown(reference)}]"
                )
        return score

    def _value(self, name: str, sample: Sample) -> Value:
        result = self._rewards[name](sample)
        number = _finite(result.value)
        if abs(number * self.configs[name].weight) > _LARGEST:
            raise RewardError(f"the value is too large to train on: {number:g} x weight {self.configs[name].weight:g}")
        return Value(number, result.explanation)

    def _total(self, values: Mapping[str, float]) -> float:
        if len(values) < len(self._rewards):
            return math.nan
        return math.fsum(self.configs[name].weight * value for name, value in values.items())


def _finite(value: Any) -> float:
    """A value as a float: any real number, true (1) and false (0) included; nothing else, and nothing infinite."""
    if not isinstance(value, numbers.Real):
        raise RewardError(f"the value is not a number: {shown(value)} ({type(value).__name__})")
    number = float(value)
    if not math.isfinite(number):
        raise RewardError(f"the value is not finite: {number}")
    return number


def score_file(rewards: RewardSet, rows: Path) -> Iterator[dict[str, Any]]:
    """Score a file of completions, line by line, in order.

    A line is a JSON object with `completion` and optionally `prompt` and `reference`; the rewards' row is all of its
    columns but the completion. What comes out per line is `total` (None when a reward failed that has
    `on_error: stop`), `rewards` (value by name, without those that failed) and `errors` (message by name).

    Raises:
        UserError: The file cannot be read or has no rows, or a line is not such an object; names file and line.
    """
    count = 0
    for where, line in _lines(rows):
        row = _row(line, where)
        prompt = row.get("prompt")
        score = rewards.score(prompt or "", row.pop("completion"), row.get("reference"), row)
        total = None if math.isnan(score.total) else score.total
        yield {"total": total, "rewards": score.values, "errors": score.errors}
        count += 1
    if not count:
        raise UserError(f"{rows}: has no rows; each line is a JSON object with a completion")


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, each with its place."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}, line {number}", line
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected a JSON object, got {shown(row)}")
    if "completion" not in row:
        raise UserError(f"{where}: has no 'completion'; columns: {', '.join(row) or 'none'}")
    for column in ("completion", "prompt"):
        if not isinstance(row.get(column, ""), str) and (column == "completion" or row[column] is not None):
            raise UserError(f"{where}: {column!r} must be text, got {shown(row[column])}")
    return row
