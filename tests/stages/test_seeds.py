"""Intervals over rows and seeds: one of two that are equal is seldom called better, one that is better is found."""

import numpy as np
import pytest

from stages.score_intervals import mean_interval
from stages.seeds import NotComparable, lead, mean_over_seeds

ROWS = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0] * 10


def test_with_one_seed_the_interval_is_that_of_the_rows():
    found = mean_over_seeds({7: ROWS})
    assert (found.low, found.high) == pytest.approx(mean_interval(ROWS))
    assert found.mean == 0.625


def test_seeds_that_disagree_widen_it():
    other = [0.0, 0.0, 0.0, *ROWS[3:]]
    alike, unlike = mean_over_seeds({1: ROWS, 2: ROWS}), mean_over_seeds({1: ROWS, 2: other})
    assert (alike.low, alike.high) == pytest.approx(mean_interval(ROWS))
    assert unlike.mean == 0.6125
    of_rows = mean_interval([(one + two) / 2 for one, two in zip(ROWS, other, strict=True)])[1] - unlike.mean
    # Of two seeds with means 0.625 and 0.6, Student's t with one degree of freedom: 12.706 * 0.01768 / sqrt(2).
    assert unlike.high - unlike.mean == pytest.approx(np.hypot(of_rows, 0.1588), abs=1e-3)


def test_it_ends_where_scores_do():
    opposite = mean_over_seeds({1: ROWS, 2: [1.0 - score for score in ROWS]})
    assert (opposite.low, opposite.high) == (0.0, 1.0)
    wider = mean_over_seeds({1: [-2.0, 3.0], 2: [0.0, 1.0], 3: [3.0, 3.0]})
    assert (wider.low, wider.high) == (-2.0, 3.0)


def test_a_lead_is_paired_over_the_seeds_in_common():
    best, second = {1: [1.0] * 40, 2: [1.0] * 40, 3: [0.0] * 40}, {1: [0.0] * 40, 2: [0.0] * 40}
    assert lead(best, second).mean == 1.0 and lead(best, second).low > 0.5
    with pytest.raises(NotComparable, match="no seed in common"):
        lead({1: ROWS}, {2: ROWS})


@pytest.mark.parametrize("rows", [1, 79, 81])
def test_other_rows_are_not_paired(rows):
    with pytest.raises(NotComparable, match="different numbers of rows"):
        lead({1: ROWS}, {1: [1.0] * rows})
    with pytest.raises(NotComparable, match="different numbers of rows"):
        mean_over_seeds({1: ROWS, 2: [1.0] * rows})


def simulated(random: np.random.Generator, means: list[float], seeds: int, rows: int) -> list[dict[int, list[float]]]:
    """Scores of 0 and 1: rows differ in difficulty for all alike, seeds shift a whole training."""
    difficulty = random.normal(0, 0.15, rows)
    return [
        {
            seed: (random.random(rows) < np.clip(mean + random.normal(0, 0.04) + difficulty, 0, 1))
            .astype(float)
            .tolist()
            for seed in range(seeds)
        }
        for mean in means
    ]


def named(cells: list[dict[int, list[float]]]) -> int | None:
    """Which of several is surely the best."""
    best, *others = sorted(range(len(cells)), key=lambda number: -np.mean(list(cells[number].values())))
    return best if all(lead(cells[best], cells[other]).low > 0 for other in others) else None


@pytest.mark.slow
@pytest.mark.parametrize(("cells", "seeds"), [(2, 3), (6, 3), (6, 5)])
def test_of_equal_cells_a_winner_is_seldom_named(cells, seeds):
    random = np.random.default_rng(cells + seeds)
    wrong = sum(named(simulated(random, [0.5] * cells, seeds, 150)) is not None for _ in range(400))
    assert wrong <= 30  # 5% of 400 are 20; 30 or more would have a chance of about 2%


@pytest.mark.slow
def test_a_better_cell_is_found():
    random = np.random.default_rng(5)
    right = [named(simulated(random, [0.5, 0.5, 0.75], 3, 150)) for _ in range(100)]
    assert right.count(2) >= 70 and set(right) <= {2, None}
