"""How often the decision is wrong, and how often it sees a gain, by simulation; `-s` prints the rates.

Where an evaluation is far from shipping the decision is not asked; a slow test asks it every time.
"""

import functools
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from conf.schema import SuiteRole
from stages.decision import Rules, SuiteScores, decide

Floats = NDArray[np.float64]
Kind = Callable[..., Floats]

QUICK = Rules(resamples=1000)
LEVEL = 0.025
EVALUATIONS = 2000
ROWS = (20, 60, 100, 300, 500)
SURE = [[0.0]] * 20, [[1.0]] * 20


def binary(random: np.random.Generator, size: tuple[int, int], discordant: float, gain: float = 0.0) -> Floats:
    """Differences of rows with scores 0 and 1: so many differ, and the mean gain is that."""
    drawn = random.random(size)
    return (drawn < (discordant + gain) / 2).astype(float) - (drawn > 1 - (discordant - gain) / 2)


def graded(random: np.random.Generator, size: tuple[int, int], discordant: float, gain: float = 0.0) -> Floats:
    """The same where scores are fractions of four fields: what differs is one field, two, or all of them."""
    sizes = random.choice([0.25, 0.5, 1.0], size)
    gain *= 12 / 7  # the mean size of a difference is 7 / 12
    return binary(random, size, max(discordant, abs(gain)), gain) * sizes


def suite(differences: Floats, role: SuiteRole = SuiteRole.task, tolerance: float = 0.05) -> SuiteScores:
    """A suite with these differences; scores begin at 1 where they fall, else at 0."""
    before = np.maximum(0, -differences)
    return of(before, before + differences, role, tolerance=tolerance)


def of(
    before: Floats, after: Floats, role: SuiteRole, anchor: Floats | None = None, tolerance: float = 0.05
) -> SuiteScores:
    return SuiteScores(
        name=role.value,
        role=role,
        tolerance=tolerance,
        candidate=after[:, None].tolist(),
        baseline=before[:, None].tolist(),
        anchor=None if anchor is None else anchor[:, None].tolist(),
    )


BETTER = SuiteScores(name="task", role=SuiteRole.task, tolerance=0.05, baseline=SURE[0], candidate=SURE[1])


def standardised(differences: Floats) -> Floats:
    """The sum over the root of the sum of squares, per evaluation: flipped signs give it a variance of 1."""
    return differences.sum(-1) / np.sqrt(np.maximum((differences**2).sum(-1), 1e-12))


def ships(*suites: SuiteScores, rules: Rules = QUICK) -> bool:
    return decide(suites, rules).verdict == "ship"


@functools.cache
def row_ships(differences: tuple[float, ...], rules: Rules, tolerance: float | None = None) -> bool:
    """Whether a task with these differences ships, or a guard with a tolerance beside a task that is surely better."""
    if tolerance is None:
        return ships(suite(np.array(differences)), rules=rules)
    return ships(BETTER, suite(np.array(differences), SuiteRole.general, tolerance), rules=rules)


def rate(differences: Floats, of_all: int, rules: Rules = QUICK, tolerance: float | None = None) -> float:
    """How many of all evaluations ship; the order of rows decides nothing, so equal decisions are made once."""
    return sum(row_ships(tuple(row), rules, tolerance) for row in np.sort(differences, axis=-1).tolist()) / of_all


def task_rate(differences: Floats, rules: Rules = QUICK) -> float:
    """How often a task ships; below 1.5 the sign-flip test is far from rejecting."""
    return rate(differences[standardised(differences) > 1.5], len(differences), rules)


def guard_rate(differences: Floats, tolerance: float) -> float:
    """How often a guard ships; its lower bound is further off than one standard error."""
    closest = differences.mean(-1) - differences.std(-1) / np.sqrt(differences.shape[1])
    return rate(differences[closest > -tolerance], len(differences), tolerance=tolerance)


def at_most(level: float, evaluations: int) -> float:
    """The rate that is exceeded in one of a thousand simulations, were the true rate at the level."""
    return float(stats.binom.ppf(0.999, evaluations, level)) / evaluations


KINDS = [(binary, 0.05), (binary, 0.2), (binary, 0.5), (graded, 0.2)]
SOON = [(binary, 0.5, 20), (binary, 0.2, 60), (binary, 0.05, 300), (graded, 0.2, 20), (graded, 0.2, 300)]
LATER = [
    pytest.param(*kind, rows, marks=pytest.mark.slow)
    for kind, rows in itertools.product(KINDS, ROWS)
    if (*kind, rows) not in SOON
]


@pytest.mark.parametrize(("kind", "discordant", "rows"), [*SOON, *LATER])
def test_equal_models_ship_at_the_stated_level_at_most(kind: Kind, discordant: float, rows: int) -> None:
    shipped = task_rate(kind(np.random.default_rng(rows), (EVALUATIONS, rows), discordant))
    print(f"\nfalse ship rate, {kind.__name__}, {discordant:.0%} discordant, {rows} rows: {shipped:.2%}")
    assert shipped <= at_most(LEVEL, EVALUATIONS)


@pytest.mark.slow
def test_the_rate_is_the_same_with_all_resamples_and_every_evaluation() -> None:
    differences = binary(np.random.default_rng(0), (EVALUATIONS, 100), 0.2)
    full, quick = task_rate(differences, Rules()), task_rate(differences)
    print(f"\nfalse ship rate, 20% discordant, 100 rows: {full:.2%}; with 1,000 resamples {quick:.2%}")
    assert full <= at_most(LEVEL, EVALUATIONS)
    assert full == pytest.approx(quick, abs=0.006)
    assert rate(differences[:500], 500, Rules()) == task_rate(differences[:500], Rules())


NARROW = [
    pytest.param(*case, 0.02, marks=pytest.mark.slow)
    for case in [(binary, 0.5, 20), (binary, 0.5, 100), (binary, 0.5, 300), (binary, 0.2, 60), (graded, 0.2, 100)]
]


@pytest.mark.parametrize(
    ("kind", "discordant", "rows", "tolerance"),
    [
        *((*case, 0.05) for case in SOON),
        *(pytest.param(*case.values, 0.05, marks=case.marks) for case in LATER),
        *NARROW,
    ],
)
def test_a_guard_that_fell_by_twice_its_tolerance_ships_in_one_per_cent_at_most(
    kind: Kind, discordant: float, rows: int, tolerance: float
) -> None:
    share = max(discordant, 2 * tolerance)
    shipped = guard_rate(kind(np.random.default_rng(rows), (EVALUATIONS, rows), share, -2 * tolerance), tolerance)
    print(f"\nguard fell by {2 * tolerance:g}, {kind.__name__}, {share:.0%} discordant, {rows} rows: {shipped:.2%}")
    assert shipped <= 0.01


def answers(random: np.random.Generator, shares: Floats) -> Floats:
    """Scores 0 or 1 of a model that answers row i rightly with chance `shares[i]`."""
    return (random.random(shares.shape) < shares).astype(float)


def nights(random: np.random.Generator) -> int:
    """How many of 30 equal candidates ship against a champion that each of them replaces."""
    easy = {role: random.beta(0.4, 0.4, 300) for role in (SuiteRole.task, SuiteRole.general)}
    champion = {role: answers(random, shares) for role, shares in easy.items()}
    anchor, shipped = champion, 0
    for _ in range(30):
        candidate = {role: answers(random, shares) for role, shares in easy.items()}
        if standardised(candidate[SuiteRole.task] - champion[SuiteRole.task]) < 1.5:
            continue
        task = of(champion[SuiteRole.task], candidate[SuiteRole.task], SuiteRole.task)
        guard = of(*(model[SuiteRole.general] for model in (champion, candidate)), SuiteRole.general,
                   anchor[SuiteRole.general])  # fmt: skip
        if ships(task, guard):
            champion, shipped = candidate, shipped + 1
    return shipped


@pytest.mark.parametrize("chains", [20, pytest.param(150, marks=pytest.mark.slow)])
def test_thirty_nights_of_equal_candidates(chains: int) -> None:
    random = np.random.default_rng(0)
    shipped = [nights(random) for _ in range(chains)]
    print(f"\n30 nights of equal candidates, {chains} times: {np.mean(shipped):.2f} ship, at most {max(shipped)}")
    assert np.mean(shipped) <= 30 * LEVEL


def leak(random: np.random.Generator, anchored: bool, step: float = 0.05 / 3) -> float:
    """True drop of a guard after 30 nights, if every candidate is a third of the tolerance below the champion.

    All models answer anew every night: otherwise a champion keeps the luck it shipped by, and is harder to follow.
    """
    share, hard = 0.7, np.linspace(0, 1, 300)

    def model(share: float) -> Floats:
        own = random.random(300) < 0.05  # on a few rows chance decides, on all others how hard they are
        return (np.where(own, random.random(300), hard) < share).astype(float)

    for _ in range(30):
        anchor = model(0.7) if anchored else None
        if ships(BETTER, of(model(share), model(share - step), SuiteRole.general, anchor)):
            share -= step
    return 0.7 - share


@pytest.mark.parametrize("chains", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_slow_leak_is_stopped_by_the_anchor(chains: int) -> None:
    random = np.random.default_rng(1)
    stopped = [leak(random, anchored=True) for _ in range(chains)]
    free = [leak(random, anchored=False) for _ in range(2)]
    print(f"\nslow leak, drop in 30 nights: {np.mean(stopped):.3f} on average, {max(stopped):.3f} at most")
    print(f"without an anchor: {np.mean(free):.3f}")
    assert 0 < max(stopped) <= 0.05 + 0.05 / 3 + 1e-9
    assert min(free) > 2 * 0.05


def best_of(random: np.random.Generator, evaluations: int, cells: int = 18) -> tuple[Floats, Floats]:
    """Differences on `select` and on `gate` of the cell that is best on `select`; all cells are equal."""
    select = binary(random, (evaluations * cells, 100), 0.2).reshape(evaluations, cells, 100)
    best = select.sum(-1).argmax(-1)
    return select[np.arange(evaluations), best], binary(random, (evaluations, 300), 0.2)


def test_choosing_on_select_leaves_the_gate_honest() -> None:
    random = np.random.default_rng(2)
    honest = task_rate(best_of(random, EVALUATIONS)[1])
    fooled = task_rate(best_of(random, 100)[0])
    print(f"\nbest of 18 equal cells: {honest:.2%} ship on other rows, {fooled:.0%} on those that chose it")
    assert honest <= at_most(LEVEL, EVALUATIONS)
    assert fooled > 4 * LEVEL


@pytest.mark.parametrize(("kind", "discordant", "gain", "least"), [
    (binary, 0.2, 0.1, 0.9), (binary, 0.3, 0.1, 0.8), (binary, 0.2, 0.05, 0.35), (graded, 0.3, 0.1, 0.9),
])  # fmt: skip
def test_power_is_that_of_the_paired_t_test(kind: Kind, discordant: float, gain: float, least: float) -> None:
    differences = kind(np.random.default_rng(3), (120, 300), discordant, gain)
    shipped = task_rate(differences)
    t_test = float(np.mean(stats.ttest_1samp(differences, 0, axis=1, alternative="greater").pvalue <= LEVEL))
    print(f"\npower, {kind.__name__}, {discordant:.0%} discordant, 300 rows, gain {gain}: {shipped:.1%}")
    print(f"paired t-test: {t_test:.1%}")
    assert shipped >= least
    assert shipped >= t_test - 0.06
