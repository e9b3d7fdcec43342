"""The decision whether a candidate ships: a pure function of per-row scores, without any model.

(Interface; the helper `decision` fills it in.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from conf.schema import SuiteRole

Scores = Sequence[Sequence[float]]
"""Of one model on one suite: per row, in the same order for every model, the scores of its samples (one, if greedy)."""


@dataclass(frozen=True, kw_only=True)
class SuiteScores:
    """What the decision looks at in one suite.

    Attributes:
        name: Of the suite.
        role: `task` must get better; all other roles must not get worse.
        tolerance: How much lower the mean score of a guard may be.
        candidate: Scores of the model that wants to ship.
        baseline: Scores of the model it is compared with.
        anchor: Scores of the pinned model, where there is one; guards alone are compared with it.
        noise: By how much the mean score of an unchanged model may differ when it is measured again.
    """

    name: str
    role: SuiteRole
    tolerance: float
    candidate: Scores
    baseline: Scores
    anchor: Scores | None = None
    noise: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a decision is made by (see `conf.sections.GateConfig`); seeded, so that it is always the same."""

    min_gain: float = 0.0
    confidence: float = 0.95
    resamples: int = 10_000
    seed: int = 0
    max_drift: float | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One suite, candidate against baseline or anchor.

    Attributes:
        suite: Its name.
        role: Its role.
        against: `baseline` or `anchor`.
        rows: Number of rows.
        before: Mean score of the model that is compared with.
        after: Mean score of the candidate.
        low: Lower bound of the gain `after - before`.
        high: Its upper bound.
        detectable: Smallest change that this many rows could have shown.
        rows_needed: How many rows would decide, where these do not; None where they do, or none would.
        outcome: `pass`, `fail` or `undecided`.
        words: Why, for a person.
    """

    suite: str
    role: SuiteRole
    against: str
    rows: int
    before: float
    after: float
    low: float
    high: float
    detectable: float
    rows_needed: int | None
    outcome: str
    words: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether to ship (`ship`, `hold` or `inconclusive`), from which comparisons, and the reasons in words."""

    verdict: str
    comparisons: Sequence[Comparison]
    reasons: Sequence[str]


def decide(suites: Sequence[SuiteScores], rules: Rules, drift: float | None = None) -> Decision:
    """Decide.

    Args:
        suites: At least one task suite.
        rules: The rules.
        drift: The candidate's divergence from the original base, in nats per token, where it is known.
    """
    raise NotImplementedError
