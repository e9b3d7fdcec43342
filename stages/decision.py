"""The decision whether a candidate ships: a pure function of per-row scores, without any model.

Ship: every task gained at least `min_gain` with its lower bound above 0, no guard may have fallen by more than its
tolerance, and the drift is not above its ceiling. Hold: a task fell or surely gained less than `min_gain`, a guard
surely fell, or the drift is above its ceiling. Anything else is inconclusive.

A guard that surely fell against the *baseline* is held, however little, because tonight's model made it worse. Against
the *anchor* it is held only beyond its tolerance: the tolerance is what all nights together may cost, and with enough
rows the smallest drop since the anchor is sure, and would stop every later night. As in both cases its lower bound must
be above `-tolerance`, small drops do not add up to more than that.

A guard also has to exclude a drop of twice its tolerance at the level 0.005. At 95% confidence this decides only with
so few rows that the tolerance is below 0.6 standard errors, where the interval alone would let such a guard pass in up
to 2.5% of cases.

The unit is the row: several samples of one are averaged, because they are not independent evidence. The result does not
depend on the order of suites or rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from conf.errors import UserError
from conf.schema import SuiteRole
from stages import decision_words as words
from stages.bootstrap import Differences, differences, interval, lower_bound
from stages.power import ROUNDING, detectable, rows_needed

VERDICTS = {"fail": "hold", "undecided": "inconclusive", "pass": "ship"}
"""What follows from the worst outcome, worst first."""
TWICE = 0.005
"""How often a guard that fell by twice its tolerance may pass: half of the 1% that is promised."""

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
    """What a decision is made by (see `conf.measuring.GateConfig`); seeded, so that it is always the same."""

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
    """Decide by the rules at the top of this module.

    Args:
        suites: At least one task suite.
        rules: The rules.
        drift: The candidate's divergence from the original base, in nats per token, where it is known.

    Raises:
        UserError: There is no task suite, or one without rows.
        ValueError: Models answered different numbers of rows, or a score is not finite.
    """
    if all(suite.role.guards for suite in suites):
        named = ", ".join(suite.name for suite in suites) or "none"
        raise UserError(
            f"a gate needs a suite with `role: task`, which must get better; its suites (all guards): {named}"
        )
    order = list(SuiteRole)
    compared = [
        _compare(suite, against, rules)
        for suite in sorted(suites, key=lambda suite: (order.index(suite.role), suite.name))
        for against in ("baseline", "anchor")
        if against == "baseline" or (suite.role.guards and suite.anchor is not None)
    ]
    outcomes = [(comparison.outcome, comparison.words) for comparison in compared]
    if rules.max_drift is not None:
        outcomes.append(_judge_drift(drift, rules.max_drift))
    worst = next(outcome for outcome in VERDICTS if any(outcome == found for found, _ in outcomes))
    reasons = [why for found, why in outcomes if found == worst]
    return Decision(verdict=VERDICTS[worst], comparisons=compared, reasons=reasons)


def _compare(suite: SuiteScores, against: str, rules: Rules) -> Comparison:
    """Compare the candidate with `baseline` or `anchor` on one suite."""
    before = _row_means(suite, against, suite.baseline if against == "baseline" else suite.anchor or ())
    after = _row_means(suite, "candidate", suite.candidate)
    if len(before) != len(after):
        raise ValueError(f"suite {suite.name}: {len(after)} rows of the candidate, {len(before)} of the {against}")
    found = differences(before, after)
    low, high = interval(found, confidence=rules.confidence, resamples=rules.resamples, seed=rules.seed)
    low, high = low - suite.noise, high + suite.noise
    outcome = (
        _judge_guard(found, low, high, suite, against)
        if suite.role.guards
        else _judge_task(found, low, high, rules.min_gain)
    )
    half = max(found.mean - low, high - found.mean) - suite.noise
    comparison = Comparison(
        suite=suite.name,
        role=suite.role,
        against=against,
        rows=found.rows,
        before=math.fsum(before) / found.rows,
        after=math.fsum(after) / found.rows,
        low=low,
        high=high,
        detectable=detectable(half, rules.confidence) + suite.noise,
        rows_needed=None,
        outcome=outcome,
        words="",
    )
    if outcome == "undecided":
        distance = _distance(found.mean, suite, against, rules) - suite.noise
        comparison = replace(comparison, rows_needed=rows_needed(found, rules.confidence, distance))
    return replace(comparison, words=words.why(comparison, suite.tolerance, rules))


def _judge_task(found: Differences, low: float, high: float, min_gain: float) -> str:
    """Whether a task got better by enough."""
    if high < 0 or high < min_gain - ROUNDING:
        return "fail"
    return "pass" if low > 0 and found.mean >= min_gain - ROUNDING else "undecided"


def _judge_guard(found: Differences, low: float, high: float, suite: SuiteScores, against: str) -> str:
    """Whether a guard did not get worse by more than its tolerance."""
    if high < _fallen(suite, against):
        return "fail"
    twice = lower_bound(found, TWICE) - suite.noise
    return "pass" if low > -suite.tolerance and twice > -2 * suite.tolerance else "undecided"


def _fallen(suite: SuiteScores, against: str) -> float:
    """The gain below which a guard fell: any drop from the baseline, one beyond the tolerance from the anchor."""
    return 0.0 if against == "baseline" else -suite.tolerance


def _distance(gain: float, suite: SuiteScores, against: str, rules: Rules) -> float:
    """How far the gain is from the bound that would decide first, if it is the true one."""
    if not suite.role.guards:
        return gain if gain >= rules.min_gain - ROUNDING else rules.min_gain - gain
    return max(gain + suite.tolerance, _fallen(suite, against) - gain)


def _judge_drift(drift: float | None, ceiling: float) -> tuple[str, str]:
    """Outcome and words; a divergence that is not known does not pass for a small one."""
    if drift is None:
        return "undecided", f"drift: not known, while max_drift is {ceiling:g}; it needs a suite with `role: general`"
    outcome = "pass" if drift <= ceiling else "fail"
    compared = "not above" if outcome == "pass" else "above"
    return outcome, f"drift: {drift:.4g} nats per token from the original base, {compared} max_drift {ceiling:g}"


def _row_means(suite: SuiteScores, model: str, scores: Scores) -> list[float]:
    """The mean of every row's samples."""
    if not scores:
        raise UserError(f"suite {suite.name}: there is no row to compare the models on")
    means = [math.fsum(samples) / len(samples) for samples in scores]
    if not all(map(math.isfinite, means)):
        raise ValueError(f"suite {suite.name}: a score of the {model} is not a finite number")
    return means
