"""The intervals against scipy, against Tango's formula, and where a plain bootstrap is wrong."""

import math
import tracemalloc

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from stages.bootstrap import Differences, differences, interval, lower_bound, percentile_bounds, sign_flip, student


def pairs(losses: int, gains: int, rows: int) -> Differences:
    """Rows of scores 0 and 1."""
    return differences([1] * losses + [0] * (rows - losses), [0] * losses + [1] * gains + [0] * (rows - losses - gains))


def found(rows: Differences) -> tuple[float, float]:
    return interval(rows, confidence=0.95, resamples=10_000, seed=0)


def tango(losses: int, gains: int, rows: int, quantile: float) -> float:
    """Lower bound of the difference of paired proportions (Tango 1998, equations 3 and 6)."""

    def score(change: float) -> float:
        b = -gains - losses + (2 * rows - gains + losses) * change
        c = -losses * change * (1 - change)
        share = (math.sqrt(max(b * b - 8 * rows * c, 0)) - b) / (4 * rows)
        deviation = math.sqrt(rows * (2 * share + change * (1 - change)))
        return (gains - losses - rows * change) / deviation - quantile

    return float(brentq(score, -1 + 1e-9, (gains - losses) / rows - 1e-12))


@pytest.mark.parametrize(("rows", "graded"), [(200, True), (300, False)])
def test_the_percentile_bootstrap_is_scipys(rows: int, graded: bool) -> None:
    random = np.random.default_rng(1)
    before = random.random(rows) if graded else random.integers(0, 2, rows).astype(float)
    after = np.where(random.random(rows) < 0.3, random.permutation(before), before)
    expected = stats.bootstrap(
        (after - before,), np.mean, method="percentile", n_resamples=10_000, rng=np.random.default_rng(5)
    ).confidence_interval
    bounds = percentile_bounds(differences(before, after), tail=0.025, resamples=10_000, seed=0)
    assert bounds == pytest.approx((expected.low, expected.high), abs=0.004)  # scores of 0 and 1: a step is 1 / 300


def test_where_the_t_test_holds_the_interval_is_as_narrow() -> None:
    random = np.random.default_rng(2)
    before = random.random(300)
    change = np.clip(random.normal(0.05, 0.25, 300), -before, 1 - before)
    low, high = found(differences(before, before + change))
    expected = stats.ttest_1samp(change, 0).confidence_interval()
    assert high - low == pytest.approx(expected.high - expected.low, rel=0.08)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=0.004)


@pytest.mark.parametrize(
    ("losses", "gains", "rows"), [(3, 9, 60), (0, 0, 20), (0, 5, 40), (5, 0, 40), (30, 30, 300), (1, 0, 100)]
)
def test_of_scores_of_0_and_1_the_score_bound_is_tangos(losses: int, gains: int, rows: int) -> None:
    expected = tango(losses, gains, rows, student(0.025, rows - 1))
    assert lower_bound(pairs(losses, gains, rows), 0.025) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("tail", [0.025, 0.01])
@pytest.mark.parametrize("degrees", [5, 19, 299])
def test_quantiles_of_students_t(degrees: int, tail: float) -> None:
    assert student(tail, degrees) == pytest.approx(stats.t.isf(tail, degrees), abs=0.011)


@pytest.mark.parametrize(("losses", "gains"), [(0, 4), (0, 6), (3, 12), (20, 30), (8, 2)])
def test_flipped_signs_of_scores_of_0_and_1_are_mcnemars_mid_p_test(losses: int, gains: int) -> None:
    exact = stats.binomtest(gains, losses + gains, alternative="greater").pvalue
    expected = exact - stats.binom.pmf(gains, losses + gains, 0.5) / 2
    assert sign_flip(pairs(losses, gains, 60), 20_000, 0) == pytest.approx(expected, abs=0.01)


def test_flipped_signs_of_graded_scores_are_scipys_permutation_test() -> None:
    random = np.random.default_rng(3)
    before, after = random.random(25), random.random(25) + 0.1
    expected = stats.permutation_test(
        (after, before),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        alternative="greater",
        n_resamples=20_000,
        rng=np.random.default_rng(5),
    ).pvalue
    assert sign_flip(differences(before, after), 20_000, 0) == pytest.approx(expected, abs=0.01)


def test_four_gains_on_twenty_rows_are_not_enough_though_bootstrap_and_score_test_say_so() -> None:
    rows = pairs(0, 4, 20)
    assert percentile_bounds(rows, tail=0.025, resamples=10_000, seed=0)[0] > 0
    assert found(rows)[0] <= 0
    assert found(rows.negated)[1] >= 0
    assert found(pairs(0, 7, 20))[0] > 0  # one case in 128


@pytest.mark.parametrize(("rows", "possible"), [(20, 0.18), (100, 0.038), (300, 0.0128)])
def test_no_difference_seen_is_not_no_difference(rows: int, possible: float) -> None:
    assert found(pairs(0, 0, rows)) == pytest.approx((-possible, possible), rel=0.02)
    assert found(differences([1.0] * rows, [1.0] * rows)) == pytest.approx((-possible, possible), rel=0.02)


def test_one_and_the_same_small_difference_everywhere_leaves_room_for_what_was_not_seen() -> None:
    low, high = found(differences([0.5] * 20, [0.6] * 20))
    assert low < 0 < 0.1 < high
    low, high = found(differences([0.0] * 20, [1.0] * 20))
    assert 0.6 < low < high == 1.0


@pytest.mark.parametrize("rows", [20, 300])
def test_whatever_that_difference_is(rows: int) -> None:
    unseen = lower_bound(pairs(0, 0, rows), 0.025)
    for change in np.arange(-0.99, 1, 0.01):
        same = differences([max(0, -change)] * rows, [max(0, change)] * rows)
        # One row of -1 among them would take (1 + change) / rows off the mean; as many as may have been missed do.
        assert lower_bound(same, 0.025) == pytest.approx(change + (1 + change) * unseen, abs=1e-4), change


def test_scores_beyond_1_leave_room_for_differences_as_large() -> None:
    assert differences([-1.0, 0.0], [0.5, 3.0]).spread == 4
    assert found(differences([10.0] * 300, [10.0] * 300))[0] == pytest.approx(10 * found(pairs(0, 0, 300))[0])


@pytest.mark.parametrize("rows", [1, 2])
def test_hardly_any_rows_exclude_hardly_anything(rows: int) -> None:
    low, high = found(differences([0.0] * rows, [1.0] * rows))
    assert low <= 0 < high == 1.0


def test_memory_does_not_grow_with_rows_times_resamples() -> None:
    random = np.random.default_rng(4)
    rows = differences(random.random(5000), random.random(5000))
    tracemalloc.start()
    found(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40_000_000  # all draws at once would be 400 MB
