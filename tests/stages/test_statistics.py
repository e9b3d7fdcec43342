"""The estimators against scipy and against simulation."""

import math
import random

import pytest
from scipy.stats import binomtest

from stages.statistics import all_equal_share, pass_at_k, wilson_interval


@pytest.mark.parametrize(("successes", "trials"), [(0, 104), (3, 104), (23, 104), (104, 104), (1, 1), (0, 1), (7, 9)])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_interval_is_wilsons(successes: int, trials: int, confidence: float) -> None:
    expected = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    found = wilson_interval(successes, trials, confidence)
    assert found == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_none_of_a_hundred_does_not_rule_out_three_per_cent() -> None:
    assert wilson_interval(0, 104) == (0.0, pytest.approx(0.0356, abs=1e-4))


@pytest.mark.parametrize("rate", [0.05, 0.4])
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_pass_at_k_is_unbiased(rate: float, k: int) -> None:
    samples = 8
    chances = [math.comb(samples, c) * rate**c * (1 - rate) ** (samples - c) for c in range(samples + 1)]
    mean = sum(chance * pass_at_k(c, samples, k) for c, chance in enumerate(chances))
    assert mean == pytest.approx(1 - (1 - rate) ** k)


PROMPTS = [[1.0], [0.9, 0.1], [0.5, 0.3, 0.2], [0.7, 0.1, 0.1, 0.1], [0.25] * 4, [0.97, 0.03]]
"""Per prompt the chances of its totals; with more than two, the reward is graded."""
GRADES = (0.0, 0.3, 1.0, 1.3)


def drawn(chances: list[float], count: int, generator: random.Random) -> list[float]:
    return generator.choices(GRADES[: len(chances)], chances, k=count)


def simulated(size: int, generator: random.Random) -> float:
    """Share of many groups of a size that turn out all equal."""
    groups = [drawn(generator.choice(PROMPTS), size, generator) for _ in range(40_000)]
    return sum(len(set(group)) == 1 for group in groups) / len(groups)


def predicted(size: int, generator: random.Random) -> tuple[float, float]:
    """The prediction from 8 samples of every prompt, averaged over many probes."""
    bounds = [all_equal_share([drawn(chances, 8, generator) for chances in PROMPTS], size) for _ in range(2_000)]
    return sum(low for low, _ in bounds) / len(bounds), sum(high for _, high in bounds) / len(bounds)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_predicted_share_of_groups_without_variance_is_unbiased(size: int) -> None:
    generator = random.Random(size)
    low, high = predicted(size, generator)
    assert low == high == pytest.approx(simulated(size, generator), abs=0.01)


def test_beyond_the_samples_the_prediction_brackets() -> None:
    generator = random.Random(0)
    low, high = predicted(16, generator)
    truth = simulated(16, generator)
    assert low - 0.01 < truth < high + 0.01 and high - low < 0.15


def test_the_lower_bound_is_exact_where_one_value_matters() -> None:
    # 4 of 10 values, 3 equal: C(3, 2) / C(5, 2) = 0.3 and C(3, 3) / C(5, 3) = 0.1
    assert all_equal_share([[1, 1, 1, 2, 3]], 2) == (pytest.approx(0.3), pytest.approx(0.3))
    assert all_equal_share([[1, 1, 1, 2, 3]], 3) == (pytest.approx(0.1), pytest.approx(0.1))
    assert all_equal_share([[1, 1, 1, 2, 3]], 5) == (0, 0) == all_equal_share([[1, 1, 1, 2, 3]], 9)
    assert all_equal_share([[0.3] * 4, [1.0] * 4], 64) == (1, 1)
