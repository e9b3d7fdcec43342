"""What counts as a success, where rewards are graded and weighted: one definition for `probe` and `difficulty`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conf.reward_base import RewardConfig
from rewards.scoring import RewardSet, Score
from stages.rows import Row
from stages.samples import expected

SLACK = 1e-9
"""How far below the value that is a success a value may be: sums of weighted values are not exact."""


@dataclass(frozen=True)
class Success:
    """A value that a completion must reach.

    Attributes:
        rewards: Those that tell.
        reward: The reward whose value tells; the total when None.
        at: The value that is a success; when None, what the row's own reference earns as a completion (or its reply
            to learn, where it has no reference).
    """

    rewards: RewardSet
    reward: str | None = None
    at: float | None = None

    @classmethod
    def of(cls, rewards: Mapping[str, RewardConfig], reward: str | None, at: float | None) -> "Success":
        """The definition for a step's rewards; where one of them tells, the others are not asked."""
        return cls(RewardSet(rewards if reward is None else {reward: rewards[reward]}), reward, at)

    def threshold(self, row: Row, where: str) -> float | None:
        """The value at which a completion of this row's prompt is a success; None when nothing tells.

        Raises:
            RewardError: A reward fails on the reference; says which and where.
        """
        if self.at is not None:
            return self.at
        answer = expected(row)
        if answer is None:
            return None
        place = f"{where}, its reference as the completion"
        return self._value(self.rewards.require_all([row.sample(as_reply(answer))], lambda _: place)[0])

    def reached(self, scores: Sequence[Score], threshold: float) -> list[bool]:
        """Which of one prompt's scores are a success."""
        return [self._value(score) >= threshold - SLACK for score in scores]

    def words(self) -> str:
        """The definition as a person reads it."""
        what = self.reward or "total"
        return f"{what} at least {'what the reference earns' if self.at is None else f'{self.at:g}'}"

    def _value(self, score: Score) -> float:
        return score.total if self.reward is None else score.values[self.reward]


def as_reply(answer: Any) -> str:
    """A reference as the text of a reply: text as it is, everything else as JSON."""
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
