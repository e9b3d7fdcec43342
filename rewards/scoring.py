"""Calling rewards and summing them: the one place where values are checked and failures become errors."""

import contextlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from conf.errors import ConfigError, UserError
from conf.reward_base import LARGEST, OnError, RewardConfig
from conf.textfile import read_text
from rewards.calling import Caller, caller
from rewards.contract import Outcome, RewardError, Sample, Value, shown


@dataclass(frozen=True)
class Score:
    """What all rewards of a set say of one completion.

    Attributes:
        total: Sum of weight x value; NaN when a reward failed that has `on_error: stop`, so that it cannot pass for
            a score.
        values: Value by reward, unweighted; one that failed has its `error_value` here, or is absent.
        errors: Message by reward, for those that failed.
        explanations: Why, by reward, for those that did not fail.
        terms: The parts of the value, by name, for rewards whose value is a sum of named parts.
    """

    total: float
    values: dict[str, float]
    errors: dict[str, str]
    explanations: dict[str, str]
    terms: dict[str, Mapping[str, float]] = field(default_factory=dict)


class RewardSet:
    """Named, weighted rewards, ready to be called: patterns compiled, schemas checked, workers of custom code started.

    A context manager: `close` ends the workers. They also end with the set, and with this process.

    Args:
        configs: Settings by name (see `conf.rewards.load_rewards`).
        folder: What relative paths in the settings are relative to; the current directory when None.

    Raises:
        ConfigError: A file, schema or function that a reward needs cannot be used; names the reward.
    """

    def __init__(self, configs: Mapping[str, RewardConfig], folder: Path | None = None) -> None:
        self.configs = dict(configs)
        self._callers: dict[str, Caller] = {}
        try:
            for name, config in configs.items():
                with _named(name):
                    self._callers[name] = caller(config, folder)
            for name, made in self._callers.items():
                with _named(name):
                    made.check()  # after all of them were made: workers load at the same time
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        for made in self._callers.values():
            made.close()

    def score(self, prompt: str, completion: str, reference: Any, row: Mapping[str, Any]) -> Score:
        """Score one completion. Never raises for what a reward does: failures are in `errors`."""
        return self.score_all([Sample(prompt, completion, reference, row)])[0]

    def score_all(self, samples: Sequence[Sample]) -> list[Score]:
        """Score completions, those of slow rewards in parallel; the scores are in the samples' order.

        Never raises for what a reward does: failures are in `errors`.
        """
        return self._scores({name: self._judged(name, samples, until_failure=False) for name in self.configs})

    def require(self, prompt: str, completion: str, reference: Any, row: Mapping[str, Any], where: str = "") -> Score:
        """Score one completion as `require_all` does; `where` says what it is, for the message."""
        return self.require_all([Sample(prompt, completion, reference, row)], lambda _: where)[0]

    def require_all(self, samples: Sequence[Sample], where: Callable[[int], str]) -> list[Score]:
        """Score completions for a stage, which must not go on when a reward fails.

        The totals are finite numbers. Failures of rewards with `on_error: score` are in `errors`, to be counted.

        Args:
            samples: What to score.
            where: What a sample is, by index, for the message, e.g. `row 12`.

        Raises:
            RewardError: A reward with `on_error: stop` failed; says which, on which sample (its first one) and why.
        """
        outcomes = {}
        for name, config in self.configs.items():
            stops = config.on_error is OnError.stop
            outcomes[name] = self._judged(name, samples, until_failure=stops)
            for index, outcome in enumerate(outcomes[name]):
                if stops and isinstance(outcome, RewardError):
                    raise _stopping(name, outcome, samples[index], where(index))
        return self._scores(outcomes)

    def _judged(self, name: str, samples: Sequence[Sample], until_failure: bool) -> list[Outcome]:
        weight = self.configs[name].weight
        return [_bounded(outcome, weight) for outcome in self._callers[name].judge(samples, until_failure)]

    def _scores(self, outcomes: Mapping[str, list[Outcome]]) -> list[Score]:
        """One score per sample, from the outcomes of every reward."""
        return [
            self._score(dict(zip(outcomes, of_sample, strict=True)))
            for of_sample in zip(*outcomes.values(), strict=True)
        ]

    def _score(self, outcomes: Mapping[str, Outcome]) -> Score:
        values: dict[str, float] = {}
        errors: dict[str, str] = {}
        explanations: dict[str, str] = {}
        terms: dict[str, Mapping[str, float]] = {}
        for name, outcome in outcomes.items():
            if isinstance(outcome, Value):
                values[name], explanations[name] = outcome.value, outcome.explanation
                if outcome.terms:
                    terms[name] = outcome.terms
            else:
                errors[name] = str(outcome)
                fallback = self.configs[name].error_value
                if self.configs[name].on_error is OnError.score and fallback is not None:
                    values[name] = fallback
        return Score(self._total(values), values, errors, explanations, terms)

    def _total(self, values: Mapping[str, float]) -> float:
        if len(values) < len(self.configs):
            return math.nan
        return math.fsum(self.configs[name].weight * value for name, value in values.items())


def failures(scores: Iterable[Score], configs: Mapping[str, RewardConfig]) -> dict[str, float]:
    """How many scores are a reward's `error_value`: `failed_<name>` for every reward with `on_error: score`."""
    failed = Counter(name for score in scores for name in score.errors)
    tolerant = [name for name, config in configs.items() if config.on_error is OnError.score]
    return {f"failed_{name}": float(failed[name]) for name in tolerant}


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"reward {name!r}: {error}") from error


def _bounded(outcome: Outcome, weight: float) -> Outcome:
    if isinstance(outcome, Value) and abs(outcome.value * weight) > LARGEST:
        return RewardError(f"the value is too large to train on: {outcome.value:g} x weight {weight:g}")
    return outcome


def _stopping(name: str, error: RewardError, sample: Sample, where: str) -> RewardError:
    place = f"{where}: " if where else ""
    return RewardError(
        f"{place}reward {name!r} failed: {error} [prompt {shown(sample.prompt)}, "
        f"completion {shown(sample.completion)}, reference {shown(sample.reference)}]"
    )


def score_file(rewards: RewardSet, rows: Path) -> Iterator[dict[str, Any]]:
    """Score a file of completions, one line after the other.

    A line is a JSON object with `completion` and optionally `prompt` and `reference`; the rewards' row is all of its
    columns but the completion. What comes out per line is `total` (None when a reward failed that has
    `on_error: stop`), `rewards` (value by name, without those that failed), `errors` (message by name) and
    `explanations` (why, by name, for those that did not fail), beside the number of the row and its completion.

    Raises:
        UserError: The file cannot be read or has no rows, or a line is not such an object; names file and line.
    """
    samples = []
    for where, line in _lines(rows):
        row = _row(line, where)
        samples.append(Sample(row.get("prompt") or "", row.pop("completion"), row.get("reference"), row))
    if not samples:
        raise UserError(f"{rows}: has no rows; each line is a JSON object with a completion")
    for number, (sample, score) in enumerate(zip(samples, rewards.score_all(samples), strict=True), start=1):
        total = None if math.isnan(score.total) else score.total
        yield {
            "row": number,
            "total": total,
            "rewards": score.values,
            "errors": score.errors,
            "explanations": score.explanations,
            "completion": sample.completion,
        }


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, each with its place."""
    for number, line in enumerate(read_text(path, str(path)).split("\n"), start=1):
        if line.strip():
            yield f"{path}, line {number}", line


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: is not JSON: {error}") from None
    except RecursionError:
        raise UserError(f"{where}: is nested too deeply") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected a JSON object, got {shown(row)}")
    if "completion" not in row:
        raise UserError(f"{where}: has no 'completion'; columns: {', '.join(row) or 'none'}")
    for column in ("completion", "prompt"):
        if not isinstance(row.get(column, ""), str) and (column == "completion" or row[column] is not None):
            raise UserError(f"{where}: {column!r} must be text, got {shown(row[column])}")
    return row
