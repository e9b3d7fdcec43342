"""Prompts answered several times and scored: what `probe` and `difficulty` look at."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from conf.reward_base import RewardConfig
from rewards.scoring import RewardSet, Score
from stages.contract import ModelRef, StageContext
from stages.generate import Completion
from stages.models import load_tokenizer
from stages.packed import pack
from stages.quantise import load_start
from stages.rows import Row
from stages.samples import answer
from stages.success import Success


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One prompt's completions.

    Attributes:
        index: Of the training row, from 0.
        row: The training row.
        completions: What the model wrote.
        scores: Theirs.
        successes: Which of them are a success; None where nothing tells (see `stages.success`).
    """

    index: int
    row: Row
    completions: Sequence[Completion]
    scores: Sequence[Score]
    successes: Sequence[bool] | None

    @property
    def totals(self) -> list[float]:
        """The total of every completion."""
        return [score.total for score in self.scores]


class TimedRewards:
    """A set of rewards that are called one after the other, each with a clock; scores are those of the whole set.

    Attributes:
        seconds: Time spent in every reward so far.
        calls: Completions scored so far.
    """

    def __init__(self, configs: Mapping[str, RewardConfig]) -> None:
        self._rewards = {name: RewardSet({name: config}) for name, config in configs.items()}
        self.seconds = dict.fromkeys(configs, 0.0)
        self.calls = 0

    def require(self, row: Row, completions: Sequence[Completion], where: str) -> list[Score]:
        """Score the completions of one prompt.

        Raises:
            RewardError: A reward with `on_error: stop` failed.
        """
        columns = []
        for name, reward in self._rewards.items():
            started = time.perf_counter()
            columns.append(reward.require_all([row.sample(each.text) for each in completions], lambda _: where))
            self.seconds[name] += time.perf_counter() - started
        self.calls += len(completions)
        return [_joined(parts) for parts in zip(*columns, strict=True)]

    def close(self) -> None:
        """End the rewards' worker processes."""
        for reward in self._rewards.values():
            reward.close()

    def seconds_per_call(self) -> dict[str, float]:
        """Mean time of one call, by reward."""
        return {name: seconds / self.calls for name, seconds in self.seconds.items()}


def _joined(parts: Sequence[Score]) -> Score:
    """One score from those of single rewards, whose totals are already weighted."""

    def merged(field: str) -> dict[str, Any]:
        return {name: value for part in parts for name, value in getattr(part, field).items()}

    names = ("values", "errors", "explanations", "terms")
    return Score(math.fsum(part.total for part in parts), *map(merged, names))


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Everything it takes to answer a prompt several times and to score the answers."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    ref: ModelRef
    rewards: TimedRewards
    success: Success
    samples: int
    temperature: float
    max_new_tokens: int
    batch_size: int

    def complete(
        self,
        rows: Sequence[Row],
        seed: int,
        progress: Callable[[int, int], None] | None = None,
        keep: Path | None = None,
    ) -> list[list[Completion]]:
        """Answer every row's prompt `samples` times; finished batches are kept in a file, if one is given."""
        return answer(
            self.model,
            self.tokenizer,
            self.ref,
            rows,
            max_new_tokens=self.max_new_tokens,
            batch_size=self.batch_size,
            seed=seed,
            temperature=self.temperature,
            samples=self.samples,
            progress=progress,
            keep=keep,
        )

    def close(self) -> None:
        """End the worker processes of its rewards."""
        self.rewards.close()
        self.success.rewards.close()

    def score(self, index: int, row: Row, completions: Sequence[Completion]) -> Rollout:
        """Score the completions of the training row with this index."""
        where = f"training row {index + 1}"
        threshold = self.success.threshold(row, where)
        scores = self.rewards.require(row, completions, where)
        successes = None if threshold is None else self.success.reached(scores, threshold)
        return Rollout(index=index, row=row, completions=completions, scores=scores, successes=successes)


def start_sampler(
    ctx: StageContext,
    success: Success,
    *,
    samples: int,
    temperature: float,
    max_new_tokens: int,
    batch_size: int,
) -> Sampler:
    """A sampler of the start model, which it loads as a stage with this hardware starts from it."""
    return Sampler(
        model=pack(load_start(ctx.start, ctx.hardware)),
        tokenizer=load_tokenizer(ctx.start),
        ref=ctx.start,
        rewards=TimedRewards(ctx.rewards),
        success=success,
        samples=samples,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
    )
