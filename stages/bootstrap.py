"""Intervals of a paired difference that are right with few rows, too: the decision to ship is made from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEW = 12
"""With this many rows per distinct value, counting how often each value is drawn is faster than drawing rows."""
ROUNDING = 1e-12
"""Where every difference is the same, the tilted mean is off by its last digit, which must not pass for a lower one."""
CHUNK = 1_000_000
"""Numbers drawn at a time, so that memory does not grow with rows times resamples."""


@dataclass(frozen=True, eq=False)
class Differences:
    """Differences of one score per row between two models.

    Attributes:
        values: The distinct differences, ascending: what follows does not depend on the order of rows.
        counts: How many rows have each.
        spread: The largest difference that a row could have had.
    """

    values: Floats
    counts: NDArray[Any]
    spread: float

    @property
    def rows(self) -> int:
        """Number of rows."""
        return round(float(self.counts.sum()))

    @property
    def mean(self) -> float:
        """The mean difference."""
        return float(self.values @ self.counts) / self.rows

    def on(self, rows: int) -> "Differences":
        """The same shares of all differences, on another number of rows (and no longer whole ones)."""
        return Differences(self.values, self.counts * (rows / self.rows), self.spread)

    @property
    def negated(self) -> "Differences":
        """The same with the two models exchanged."""
        return Differences(-self.values[::-1], self.counts[::-1], self.spread)


def differences(before: Sequence[float], after: Sequence[float]) -> Differences:
    """`after - before`, row by row.

    The spread is that of the observed scores, 0 and 1 included: rewards mostly lie there, and a suite on which every
    score is 1 must not pass for one on which no other score is possible.
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    values, counts = np.unique(np.round(second - first, 12), return_counts=True)
    highest, lowest = max(1.0, first.max(), second.max()), min(0.0, first.min(), second.min())
    return Differences(values, counts.astype(np.int64), float(highest - lowest))


def interval(found: Differences, *, confidence: float, resamples: int, seed: int) -> tuple[float, float]:
    """Two-sided interval of the mean difference, for rows that are a sample of all rows there could be.

    It is the wider, on each side, of the percentile bootstrap over rows and of the score interval (`lower_bound`); a
    side that excludes 0 is moved to 0 unless a sign-flip test rejects equality on that side, too.

    Each makes up for what another lacks. The percentile bootstrap is too narrow with few rows, and has no width when no
    row differs. The score interval does not see the shape of the differences. Neither keeps its level at 0 with few
    discordant rows (4 gains, no loss and 16 ties: both exclude 0, while equal models do as well in one of 16 cases);
    flipping signs does, for any number of rows (for scores of 0 and 1 it is McNemar's mid-p test). Where the t-test and
    McNemar's test hold, all agree closely.

    Sources: Efron and Tibshirani 1993, chapter 13; Tango 1998, Statistics in Medicine 17:891; Owen 2001, Empirical
    Likelihood; Fagerland, Lydersen and Laake 2014, Statistics in Medicine 33:2850, for pairs of proportions.
    """
    tail = (1 - confidence) / 2
    low, high = percentile_bounds(found, tail=tail, resamples=resamples, seed=seed)
    low = min(low, lower_bound(found, tail))
    high = max(high, -lower_bound(found.negated, tail))
    if low > 0 and sign_flip(found, resamples, seed) > tail:
        low = 0.0
    if high < 0 and sign_flip(found.negated, resamples, seed) > tail:
        high = 0.0
    return low, high


def percentile_bounds(found: Differences, *, tail: float, resamples: int, seed: int) -> tuple[float, float]:
    """The percentile bootstrap of the mean: its `tail` and `1 - tail` quantiles over resamples of the rows.

    The means of scores of 0 and 1 lie `1 / rows` apart. A resample at the bound counts half, as in a mid-p value, and
    between two means the quantile is interpolated (Ma, Genton and Parzen 2011, Annals of the Institute of Statistical
    Mathematics 63:227); where no two means are equal, that is the ordinary quantile.
    """
    random = np.random.default_rng(seed)
    rows, means = found.rows, []
    each = None if FEW * len(found.values) < rows else np.repeat(found.values, found.counts)
    for size in _chunks(resamples, len(found.values) if each is None else rows):
        if each is None:
            means.append(random.multinomial(rows, found.counts / rows, size=size) @ found.values / rows)
        else:
            means.append(each[random.integers(0, rows, (size, rows), dtype=np.uint32)].mean(axis=1))
    reached, counts = np.unique(np.round(np.concatenate(means), 12), return_counts=True)
    low, high = np.interp([tail, 1 - tail], (np.cumsum(counts) - counts / 2) / resamples, reached)
    return float(low), float(high)


def sign_flip(found: Differences, resamples: int, seed: int) -> float:
    """One-sided mid-p value of "the two are equal" against "the mean is above 0", from random signs.

    Equal models may be exchanged within every row, so every sign of a difference is as likely as the other (Fisher
    1935). What is as extreme as the observed signs, themselves included, counts half (Lancaster 1961): with scores of
    0 and 1 whole counts are conservative, and halves keep the level, too, short of nearly all rows being discordant
    (Fagerland, Lydersen and Laake 2013, BMC Medical Research Methodology 13:91).
    """
    random = np.random.default_rng(seed)
    sizes = np.repeat(np.abs(found.values), np.where(found.values == 0, 0, found.counts))
    # The mean is above the observed one where the rows that a draw makes negative weigh less than the negative ones.
    negative = float(np.maximum(-found.values, 0) @ found.counts)
    beyond, equal = 0, 1
    for size in _chunks(resamples, len(sizes)):
        weights = random.integers(0, 2, (size, len(sizes)), dtype=np.int8) @ sizes
        ties = np.abs(weights - negative) < 1e-9
        equal += int(ties.sum())
        beyond += int((~ties & (weights < negative)).sum())
    return (beyond + equal / 2) / (1 + resamples)


def lower_bound(found: Differences, tail: float) -> float:
    """The score bound: the highest mean that a one-sided score test at level `tail` rejects.

    The variance is not that of the sample but of the distribution that explains the sample best if its mean *were*
    that bound (empirical likelihood), where a difference of `-spread` is possible though it was never seen. So no
    difference at all on 20 rows leaves room for a drop of 0.18, on 300 for one of 0.013: the rule of three. For scores
    of 0 and 1 it is Tango's interval (without losses or gains Wilson's), which keeps its level with few discordant
    rows; with Student's quantile for the normal one it does with 20 rows.
    """
    quantile = student(tail, found.rows - 1)
    start, end = 0.0, 2.0
    for _ in range(5):  # each round looks at 32 points and goes on between two of them
        path = np.linspace(start, end, 33)
        means, variances = _least_favourable(found, path)
        rejected = found.mean - means - ROUNDING * found.spread > quantile * np.sqrt(variances / found.rows)
        first = max(1, int(np.argmax(rejected))) if rejected.any() else 32
        start, end, bound = path[first - 1], path[first], float(means[first])
    return bound


def _least_favourable(found: Differences, path: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of the likeliest distributions with ever lower means, from the sample's (0) to -spread (2).

    Weights proportional to `1 / (1 + t * difference / spread)` maximise the likelihood for their mean (Owen 2001, 2.9);
    beyond t = 1 they stay, and what is left goes to the unseen difference `-spread`.
    """
    tilt, unseen = np.minimum(path, 1)[:, None], np.maximum(path - 1, 0)
    weights = found.counts / np.maximum(1 + tilt * found.values / found.spread, 1e-12)
    weights /= weights.sum(axis=1, keepdims=True)
    means = (1 - unseen) * (weights @ found.values) - unseen * found.spread
    squares = (1 - unseen) * (weights @ found.values**2) + unseen * found.spread**2
    return means, np.maximum(squares - means**2, 0)


def student(tail: float, degrees: int) -> float:
    """Upper quantile of Student's t (Abramowitz and Stegun 26.7.5); with fewer than 5 degrees it is too low."""
    z, n = NormalDist().inv_cdf(1 - tail), max(1, degrees)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / n**power for power, term in enumerate(terms, start=1))


def _chunks(total: int, width: int) -> list[int]:
    """Sizes of chunks of draws, each of `width` numbers."""
    size = max(1, CHUNK // max(1, width))
    return [min(size, total - start) for start in range(0, total, size)]
