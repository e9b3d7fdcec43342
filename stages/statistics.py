"""What can be said from a few samples: intervals and unbiased estimators, from the standard library alone."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist, fmean


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of a proportion that holds for few trials and for none or all successful (Wilson 1927).

    Args:
        successes: How many trials succeeded.
        trials: How many there were, at least 1; taken as independent.
        confidence: Share of such intervals that contain the true proportion.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate, shrink = successes / trials, 1 + z * z / trials
    middle = rate + z * z / (2 * trials)
    half = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    low = 0.0 if successes == 0 else (middle - half) / shrink  # exactly, not the last digit of a difference
    high = 1.0 if successes == trials else (middle + half) / shrink
    return low, high


def pass_at_k(successes: int, samples: int, k: int) -> float:
    """Chance that at least one of k samples succeeds, estimated without bias (Chen et al. 2021, arXiv:2107.03374)."""
    return 1 - math.comb(samples - successes, k) / math.comb(samples, k)


def all_equal_share(groups: Sequence[Sequence[float]], size: int) -> tuple[float, float]:
    """Predicted share of groups of a size whose values are all equal, as two bounds.

    Groups of a prompt with probabilities p_v of the values v are all equal with chance f(size) = sum over v of
    p_v^size. Up to the number of values given, the chance that `size` of them drawn without replacement are equal
    estimates f without bias, and both bounds are that estimate. (The plug-in, with frequencies for p_v, is biased
    upwards: eight equal values would mean 1 for every size.)

    Beyond, no unbiased estimator exists. f falls with the size, which gives the upper bound; and it is a sum of powers
    of numbers from 0 to 1, so f(size + 1) / f(size) never falls (Cauchy-Schwarz), which gives the lower one. That is
    exact where all prompts have one p_v that matters.

    Args:
        groups: Per prompt, equally many values (at least 2) of independent samples.
        size: Size of the group to predict, at least 1.
    """
    given = len(groups[0])
    if size <= given:
        share = fmean(_drawn_equal(values, size) for values in groups)
        return share, share
    last, before = (fmean(_drawn_equal(values, drawn) for values in groups) for drawn in (given, given - 1))
    return (last * (last / before) ** (size - given) if last else 0.0), last


def _drawn_equal(values: Sequence[float], size: int) -> float:
    """Chance that `size` of the values, drawn without replacement, are all equal."""
    return sum(math.comb(count, size) for count in Counter(values).values()) / math.comb(len(values), size)
