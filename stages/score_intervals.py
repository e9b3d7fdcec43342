"""What scores of a suite say of a model, and whether they tell two models apart."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stages.bootstrap import Differences, differences, interval, lower_bound, percentile_bounds
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
    """The mean of a model's scores on a suite, with its interval."""
    scores = row_means(replies)
    low, high = mean_interval(scores, seed)
    return MeanScore(
        mean=statistics.fmean(scores),
        low=low,
        high=high,
        rows=len(scores),
        tokens=statistics.fmean(reply.tokens for reply in replies),
        by_row=scores,
    )


def mean_interval(scores: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The wider, on each side, of the percentile bootstrap and the score bound (see `stages.bootstrap`).

    The scores a row could have had are taken to lie between the least and the largest one seen, 0 and 1 included; one
    row alone says no more than that. For scores of 0 and 1 the score bound is Wilson's, with Student's quantile.
    """
    least, most = min(0.0, *scores), max(1.0, *scores)
    if len(scores) < 2:
        return least, most
    middle, tail = (least + most) / 2, (1 - CONFIDENCE) / 2
    values, counts = np.unique(np.round(np.asarray(scores) - middle, 12), return_counts=True)
    found = Differences(values, counts, (most - least) / 2)
    low, high = percentile_bounds(found, tail=tail, resamples=RESAMPLES, seed=seed)
    return middle + min(low, lower_bound(found, tail)), middle + max(high, -lower_bound(found.negated, tail))


def winner(scores: Mapping[str, Sequence[float]], seed: int = 0) -> str | None:
    """The model with the best mean, where the interval of its lead over every other lies above 0; else None.

    That over the second is not enough: a third that answers quite differently may have a lower mean by chance.

    Args:
        scores: By model, the scores of the same rows.
        seed: Of the bootstrap.
    """
    ranked = sorted(scores, key=lambda model: statistics.fmean(scores[model]))
    if len(ranked) < 2 or len(scores[ranked[0]]) < 2:
        return None
    *others, best = ranked
    leads = (differences(scores[other], scores[best]) for other in reversed(others))
    bounds = (interval(lead, confidence=CONFIDENCE, resamples=RESAMPLES, seed=seed) for lead in leads)
    return best if all(low > 0 for low, _ in bounds) else None
