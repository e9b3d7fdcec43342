"""From the scores of an audit to its findings: the share of the yardstick that a policy earns, and what earns it."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from conf.measuring import AUDIT_REFERENCE, AuditConfig
from conf.reward_base import RewardConfig
from conf.structured_rewards import ToolCallConfig
from rewards.policies import Case, Completions
from rewards.scoring import Score

_TOLERANCE = 1e-9
_UNKNOWN_RANGE = ("custom", "command", "gym")
_VERDICTS = ("fine", "warning", "stop")


@dataclass(frozen=True, kw_only=True)
class Example:
    """One row and what a policy earned there; `earned` is what each reward, or term of one, adds to the total."""

    row: int
    prompt: str
    completion: str
    total: float
    earned: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one policy earns.

    Attributes:
        policy: Its name (`conf.measuring.AUDIT_POLICIES`), or `reference` for the right answers themselves.
        rows: Rows that it has a completion for.
        mean: Mean total over these.
        share: `mean` as a share of the yardstick on the same rows; None where there is none.
        verdict: `fine`, `warning` or `stop`.
        acknowledged: Whether `audit.allow` names it.
        earned: Mean that each reward, or term of one, adds to the total; the largest first.
        best: The row where it earns most.
        reason: For the reference: what is wrong with it.
    """

    policy: str
    rows: int
    mean: float
    share: float | None
    verdict: str
    acknowledged: bool
    earned: Mapping[str, float]
    best: Example
    reason: str = ""

    @property
    def stops(self) -> bool:
        """Whether training must not begin."""
        return self.verdict == "stop" and not self.acknowledged


@dataclass(frozen=True, kw_only=True)
class Audit:
    """All findings: that of the reference (None where the rows have none), then the policies.

    Attributes:
        rows: Rows audited.
        reference: What the right answers earn.
        largest: The largest total the rewards can give; the yardstick where there is no reference.
        findings: One per policy that applies.
        left_out: Names of those that do not.
        failed: Scores that are a reward's `error_value`, by reward.
    """

    rows: int
    reference: Finding | None
    largest: float | None
    findings: list[Finding]
    left_out: list[str]
    failed: Mapping[str, int] = field(default_factory=dict)

    @property
    def all(self) -> list[Finding]:
        """The reference, where there is one, and the policies."""
        return [*([self.reference] if self.reference else []), *self.findings]

    @property
    def stops(self) -> bool:
        """Whether training must not begin."""
        return any(finding.stops for finding in self.all)


@dataclass(frozen=True)
class Scored:
    """A policy's completions and their scores, None for rows it has no completion for."""

    completions: Completions
    scores: list[Score | None]

    def on(self, other: "Scored | None") -> list[int]:
        """Rows for which this policy has a score, and the other, where there is one, too."""
        return [
            index
            for index, score in enumerate(self.scores)
            if score is not None and (other is None or other.scores[index] is not None)
        ]

    def mean(self, rows: Sequence[int]) -> float:
        """Mean total over rows that have a score."""
        return statistics.fmean(score.total for index in rows if (score := self.scores[index]) is not None)


class Judge:
    """From scores to findings."""

    def __init__(
        self,
        cases: Sequence[Case],
        configs: Mapping[str, RewardConfig],
        settings: AuditConfig,
        right: Scored | None,
    ) -> None:
        self._cases, self._configs, self._settings, self._right = cases, configs, settings, right
        self.largest = None if right else largest_total(configs)

    def policy(self, name: str, scored: Scored) -> Finding:
        """What a policy earns, and what is to be said of it."""
        share = self._share(scored)
        level = 0
        if share is not None:
            level = sum(share >= limit - _TOLERANCE for limit in (self._settings.warn, self._settings.stop))
        return self._finding(name, scored, share, level)

    def reference(self, scored: Mapping[str, Scored]) -> Finding:
        """What the right answers earn: they must be positive, and no policy may beat them that is not acknowledged."""
        right = self._right
        assert right is not None
        reasons = []
        mean = right.mean(right.on(None))
        if mean <= _TOLERANCE:
            reasons.append("the right answers earn nothing; do the rewards read them as they are written?")
        beaten = {
            name: policy.mean(rows) - right.mean(rows)
            for name, policy in scored.items()
            if name not in self._settings.allow and (rows := policy.on(right))
        }
        worst = max(beaten, key=lambda name: beaten[name], default="")
        if worst and beaten[worst] > _TOLERANCE * max(1.0, abs(mean)):
            reasons.append(f"{worst} earns {beaten[worst]:.3g} more than the right answers")
        return self._finding(AUDIT_REFERENCE, right, 1.0, 2 if reasons else 0, "; ".join(reasons))

    def _share(self, scored: Scored) -> float | None:
        if self._right is None:
            return scored.mean(scored.on(None)) / self.largest if self.largest else None
        rows = scored.on(self._right)
        yardstick = self._right.mean(rows) if rows else 0.0
        return scored.mean(rows) / yardstick if yardstick > _TOLERANCE else None

    def _finding(self, name: str, scored: Scored, share: float | None, level: int, reason: str = "") -> Finding:
        rows = scored.on(None)
        parts = [self._earned(score) for score in scored.scores if score is not None]
        names = dict.fromkeys(part for earned in parts for part in earned)
        means = {part: math.fsum(earned.get(part, 0.0) for earned in parts) / len(parts) for part in names}
        return Finding(
            policy=name,
            rows=len(rows),
            mean=scored.mean(rows),
            share=share,
            verdict=_VERDICTS[level],
            acknowledged=name in self._settings.allow,
            earned=dict(sorted(means.items(), key=lambda item: -item[1])),
            best=self._best(scored, rows),
            reason=reason,
        )

    def _best(self, scored: Scored, rows: Sequence[int]) -> Example:
        def total(index: int) -> float:
            score = scored.scores[index]
            return -math.inf if score is None else score.total

        index = max(rows, key=total)
        score = scored.scores[index]
        assert score is not None
        return Example(
            row=index + 1,
            prompt=self._cases[index].prompt,
            completion=scored.completions[index] or "",
            total=score.total,
            earned=self._earned(score),
        )

    def _earned(self, score: Score) -> dict[str, float]:
        """What each reward, or each term of one that has terms, adds to the total."""
        earned = {}
        for name, value in score.values.items():
            weight, terms = self._configs[name].weight, score.terms.get(name)
            if terms:
                earned.update({f"{name}.{term}": weight * points for term, points in terms.items()})
            else:
                earned[name] = weight * value
        return earned


def largest_total(configs: Mapping[str, RewardConfig]) -> float | None:
    """The largest total that the rewards can give; None when the range of one is unknown."""
    total = 0.0
    for config in configs.values():
        if config.type in _UNKNOWN_RANGE:
            return None
        largest = 1.0
        if isinstance(config, ToolCallConfig):
            largest = sum(max(0.0, points) for points in vars(config.points).values())
        total += max(0.0, config.weight * largest)
    return total
