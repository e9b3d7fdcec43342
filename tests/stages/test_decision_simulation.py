"""How often the decision is wrong, and how often it sees a gain, by simulation; `-s` prints the rates.

Where an evaluation cannot ship whatever the resamples say (a task whose mean did not rise, a guard whose mean fell by
its tolerance), the decision is not asked; the slow tests ask it every time.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from conf.schema import SuiteRole
from stages.decision import Rules, SuiteScores, decide

Floats = NDArray[np.float64]

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
    """The same where scores are fractions of four fields: what differs is one field, or all of them."""
    return binary(random, size, discordant, gain) * random.choice([0.25, 0.5, 1.0], size) / (1 if gain == 0 else 7 / 12)


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


def task_rate(differences: Floats, rules: Rules = QUICK, every: bool = False) -> float:
    """How often a task with these differences ships; below 1.5 the sign-flip test is far from rejecting."""
    near = differences if every else differences[standardised(differences) > 1.5]
    return sum(ships(suite(row), rules=rules) for row in near) / len(differences)


def guard_rate(differences: Floats, tolerance: float = 0.05, rules: Rules = QUICK) -> float:
    """How often a guard ships beside a task that is surely better; no lower bound is above the mean."""
    near = differences[differences.mean(-1) > -tolerance]
    shipped = (ships(BETTER, suite(row, SuiteRole.general, tolerance), rules=rules) for row in near)
    return sum(shipped) / len(differences)


def at_most(level: float, evaluations: int) -> float:
    """The rate that is exceeded in one of a thousand simulations, were the true rate at the level."""
    return float(stats.binom.ppf(0.999, evaluations, level)) / evaluations


KINDS = [(binary, 0.05), (binary, 0.2), (binary, 0.5), (graded, 0.2)]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("kind", "discordant"), KINDS)
def test_equal_models_ship_at_the_stated_level_at_most(
    kind: Callable[..., Floats], discordant: float, rows: int
) -> None:
    rate = task_rate(kind(np.random.default_rng(rows), (EVALUATIONS, rows), discordant))
    print(f"\nfalse ship rate, {kind.__name__}, {discordant:.0%} discordant, {rows} rows: {rate:.2%}")
    assert rate <= at_most(LEVEL, EVALUATIONS)


@pytest.mark.parametrize("tolerance", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("rows", ROWS)
def test_a_guard_that_fell_by_twice_its_tolerance_ships_in_one_per_cent_at_most(rows: int, tolerance: float) -> None:
    for kind, discordant in KINDS:
        share = max(discordant, 2 * tolerance)
        fallen = kind(np.random.default_rng(rows), (EVALUATIONS, rows), share, -2 * tolerance)
        rate = guard_rate(fallen, tolerance)
        print(f"\nguard fell by {2 * tolerance:g}, {kind.__name__}, {share:.0%} discordant, {rows} rows: {rate:.2%}")
        assert rate <= 0.01


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


def test_thirty_nights_of_equal_candidates() -> None:
    random = np.random.default_rng(0)
    chains = 40
    shipped = [nights(random) for _ in range(chains)]
    print(f"\n30 nights of equal candidates, {chains} times: {np.mean(shipped):.2f} ship, at most {max(shipped)}")
    assert np.mean(shipped) <= 30 * LEVEL


def leak(random: np.random.Generator, anchored: bool, step: float = 0.05 / 3) -> Iterator[float]:
    """True drop of a guard after each of 30 nights, if every candidate loses a third of the tolerance."""
    share, rows = 0.7, random.random(300)

    def model(share: float) -> Floats:
        own = random.random(300) < 0.2  # on a fifth of the rows chance decides, on all others how hard they are
        return (np.where(own, random.random(300), rows) < share).astype(float)

    champion = model(share)
    anchor = champion if anchored else None
    for _ in range(30):
        candidate = model(share - step)
        if (candidate - champion).mean() > -0.05 and ships(BETTER, of(champion, candidate, SuiteRole.general, anchor)):
            champion, share = candidate, share - step
        yield 0.7 - share


def test_a_slow_leak_is_stopped_by_the_anchor() -> None:
    random = np.random.default_rng(1)
    stopped = [list(leak(random, anchored=True))[-1] for _ in range(8)]
    free = [list(leak(random, anchored=False))[-1] for _ in range(3)]
    print(f"\nslow leak, drop after 30 nights: {np.mean(stopped):.3f} on average, {max(stopped):.3f} at most;"
          f" without an anchor {np.mean(free):.3f}")  # fmt: skip
    assert max(stopped) < 0.05 + 0.05 / 3
    assert min(free) > 2 * 0.05


def best_of(random: np.random.Generator, evaluations: int, cells: int = 18) -> tuple[Floats, Floats]:
    """Differences on `select` and on `gate` of the cell that is best on `select`; all cells are equal."""
    select = binary(random, (evaluations * cells, 100), 0.2).reshape(evaluations, cells, 100)
    best = select.sum(-1).argmax(-1)
    return select[np.arange(evaluations), best], binary(random, (evaluations, 300), 0.2)


def test_choosing_on_select_leaves_the_gate_honest() -> None:
    random = np.random.default_rng(2)
    honest = task_rate(best_of(random, EVALUATIONS)[1])
    fooled = task_rate(best_of(random, 200)[0])
    print(f"\nbest of 18 equal cells: {honest:.2%} ship on other rows, {fooled:.0%} on those that chose it")
    assert honest <= at_most(LEVEL, EVALUATIONS)
    assert fooled > 5 * LEVEL


@pytest.mark.parametrize(("kind", "discordant", "gain", "least"), [
    (binary, 0.2, 0.1, 0.9), (binary, 0.3, 0.1, 0.8), (binary, 0.2, 0.05, 0.35), (graded, 0.3, 0.1, 0.9),
])  # fmt: skip
def test_power_is_that_of_the_paired_t_test(
    kind: Callable[..., Floats], discordant: float, gain: float, least: float
) -> None:
    differences = kind(np.random.default_rng(3), (300, 300), discordant, gain)
    rate = task_rate(differences)
    t_test = float(np.mean(stats.ttest_1samp(differences, 0, axis=1, alternative="greater").pvalue <= LEVEL))
    print(
        f"\npower, {kind.__name__}, {discordant:.0%} discordant, 300 rows, gain {gain}: {rate:.1%}; t-test {t_test:.1%}"
    )
    assert rate >= least
    assert rate >= t_test - 0.05
