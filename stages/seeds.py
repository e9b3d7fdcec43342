"""What scores of the same rows say when a training was repeated with several seeds, and whether they tell two apart.

Two things are a sample here, rows and seeds: other rows would give another mean, and so would other seeds. Each has an
interval of its own, and the two are joined side by side as the limits of a sum of independent estimates are (MOVER: Zou
and Donner 2008, Statistics in Medicine 27:1693): what the rows may move the mean by, and what the seeds may, added as
squares. What a row and a seed share in chance alone counts in both, which errs on the wide side (Owen 2007, Annals of
Applied Statistics 1:386). With one seed nothing is known of others, and the interval is that of the rows.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scipy.special import stdtrit

from stages.bootstrap import differences, interval
from stages.score_intervals import CONFIDENCE, RESAMPLES, mean_interval

SeedScores = Mapping[int, Sequence[float]]
"""By seed, the scores of the same rows in the same order."""


class NotComparable(Exception):
    """Scores of different rows, or of different seeds: what they have is said as the end of a sentence."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over rows and seeds with its 95% interval."""

    mean: float
    low: float
    high: float


def mean_over_seeds(scores: SeedScores) -> Estimate:
    """The mean score, for rows and seeds that are a sample of all there could be.

    Its interval ends at the least and the largest score seen, 0 and 1 included, as that of `mean_interval` does.

    Raises:
        NotComparable: The seeds have different numbers of rows.
    """
    rows = _row_means(scores, list(scores))
    low, high = mean_interval(rows)
    found = _joined(statistics.fmean(rows), low, high, [statistics.fmean(each) for each in scores.values()])
    least, most = min(0.0, *map(min, scores.values())), max(1.0, *map(max, scores.values()))
    return replace(found, low=max(found.low, least), high=min(found.high, most))


def lead(best: SeedScores, second: SeedScores) -> Estimate:
    """By how much one is better than another, row by row and seed by seed, over the seeds that both have.

    Raises:
        NotComparable: They have no seed in common, or different numbers of rows.
    """
    seeds = [seed for seed in best if seed in second]
    if not seeds:
        raise NotComparable("no seed in common")
    after, before = _row_means(best, seeds), _row_means(second, seeds)
    if len(after) != len(before):
        raise NotComparable("different numbers of rows")
    found = differences(before, after)
    low, high = interval(found, confidence=CONFIDENCE, resamples=RESAMPLES, seed=0)
    by_seed = [statistics.fmean(best[seed]) - statistics.fmean(second[seed]) for seed in seeds]
    return _joined(found.mean, low, high, by_seed)


def _row_means(scores: SeedScores, seeds: Sequence[int]) -> list[float]:
    if len({len(scores[seed]) for seed in seeds}) > 1:
        raise NotComparable("different numbers of rows")
    return [statistics.fmean(values) for values in zip(*(scores[seed] for seed in seeds), strict=True)]


def _joined(mean: float, low: float, high: float, by_seed: Sequence[float]) -> Estimate:
    """The interval of the rows, widened by what the seeds may move the mean by (Student's t)."""
    half = 0.0
    if len(by_seed) > 1:
        quantile = float(stdtrit(len(by_seed) - 1, (1 + CONFIDENCE) / 2))
        half = quantile * statistics.stdev(by_seed) / math.sqrt(len(by_seed))
    return Estimate(mean=mean, low=mean - math.hypot(mean - low, half), high=mean + math.hypot(high - mean, half))
