"""What scores of a suite say of a model, and whether they tell two models apart."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stages.bootstrap import differences, interval
from stages.score_metrics import row_means
from stages.suite_scores import RowScore

CONFIDENCE = 0.95
RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class MeanScore:
    """A model on a suite.

    Attributes:
        mean: Of the scores.
        low: Lower bound of its 95% interval, for rows that are a sample of all rows there could be.
        high: Its upper bound.
        rows: Number of rows.
        tokens: Mean length of the replies.
        by_row: The score of every row, the mean over its samples.
    """

    mean: float
    low: float
    high: float
    rows: int
    tokens: float
    by_row: Sequence[float]


def mean_score(replies: Sequence[RowScore], seed: int = 0) -> MeanScore:
    """The mean of a model's scores on a suite, with its interval (see `stages.bootstrap.interval`)."""
    scores = row_means(replies)
    least, most = min(0.0, *scores), max(1.0, *scores)
    low, high = least, most  # all that one row says
    if len(scores) > 1:
        low, high = _interval([0.0] * len(scores), scores, seed)
    return MeanScore(
        mean=statistics.fmean(scores),
        low=max(low, least),
        high=min(high, most),
        rows=len(scores),
        tokens=statistics.fmean(reply.tokens for reply in replies),
        by_row=scores,
    )


def winner(scores: Mapping[str, Sequence[float]], seed: int = 0) -> str | None:
    """The model with the best mean, where the interval of its lead over the second lies above 0; else None.

    Args:
        scores: By model, the scores of the same rows.
        seed: Of the bootstrap.
    """
    ranked = sorted(scores, key=lambda model: statistics.fmean(scores[model]))[-2:]
    if len(ranked) < 2 or len(scores[ranked[0]]) < 2:
        return None
    low, _ = _interval(scores[ranked[0]], scores[ranked[1]], seed)
    return ranked[1] if low > 0 else None


def _interval(before: Sequence[float], after: Sequence[float], seed: int) -> tuple[float, float]:
    return interval(differences(before, after), confidence=CONFIDENCE, resamples=RESAMPLES, seed=seed)
