"""The verdicts and their reasons, on cases that can be checked by hand; their rates are in test_decision_simulation."""

import random
import time
from dataclasses import replace

import pytest

from conf.errors import UserError
from conf.schema import SuiteRole
from stages.decision import Comparison, Decision, Rules, Scores, SuiteScores, decide

RULES = Rules()


def pairs(rows: int, losses: int, gains: int) -> tuple[Scores, Scores]:
    """Scores of 0 and 1, half of them 1 at first; then so many rows are lost and so many gained."""
    before = [1.0] * (rows // 2) + [0.0] * (rows - rows // 2)
    after = [0.0] * losses + before[losses : rows - gains] + [1.0] * gains
    return [[score] for score in before], [[score] for score in after]


def suite(role: SuiteRole, rows: int, losses: int, gains: int, name: str = "", anchored: bool = False) -> SuiteScores:
    before, after = pairs(rows, losses, gains)
    return SuiteScores(
        name=name or role.value,
        role=role,
        tolerance=0.05,
        candidate=after,
        baseline=before,
        anchor=before if anchored else None,
    )


BETTER = suite(SuiteRole.task, 300, 10, 40, name="arithmetic")
KEPT = suite(SuiteRole.general, 300, 5, 3)


def one(found: Decision, name: str, against: str = "baseline") -> Comparison:
    return next(part for part in found.comparisons if (part.suite, part.against) == (name, against))


def test_a_better_task_and_kept_guards_ship() -> None:
    found = decide([BETTER, suite(SuiteRole.general, 300, 5, 3, anchored=True)], Rules(max_drift=0.5), drift=0.2)
    assert found.verdict == "ship"
    assert found.reasons == [
        "task arithmetic: 0.500 -> 0.600 (+0.100, 95% interval +0.055 to +0.148): better",
        "general: 0.500 -> 0.493 (-0.007, 95% interval -0.030 to +0.015): not lower than before by more than 0.05",
        "general, against the anchor: 0.500 -> 0.493 (-0.007, 95% interval -0.030 to +0.015): "
        "not lower than the anchor by more than 0.05",
        "drift: 0.2 nats per token from the original base, not above max_drift 0.5",
    ]


def test_a_guard_that_fell_holds_even_within_its_tolerance() -> None:
    found = decide([BETTER, suite(SuiteRole.general, 1000, 30, 5, name="trivia")], RULES)
    assert found.verdict == "hold"
    assert found.reasons == [
        "general trivia: 0.500 -> 0.475 (-0.025, 95% interval -0.038 to -0.014): lower than before"
    ]


def test_a_small_sure_drop_since_the_anchor_is_what_the_tolerance_is_for() -> None:
    before, after = pairs(1000, 30, 5)
    kept = SuiteScores(
        name="general", role=SuiteRole.general, tolerance=0.05, candidate=after, baseline=after, anchor=before
    )
    found = decide([BETTER, kept], RULES)
    assert found.verdict == "ship"
    assert one(found, "general", "anchor").high < 0
    assert decide([BETTER, replace(kept, tolerance=0.03)], RULES).verdict == "inconclusive"
    held = decide([BETTER, replace(kept, tolerance=0.01)], RULES)
    assert held.verdict == "hold"
    assert held.reasons == [
        "general, against the anchor: 0.500 -> 0.475 (-0.025, 95% interval -0.038 to -0.014): "
        "lower than the anchor by more than 0.01"
    ]


def test_a_task_is_not_compared_with_the_anchor() -> None:
    found = decide([replace(BETTER, anchor=BETTER.candidate), KEPT], RULES)
    assert [(part.suite, part.against) for part in found.comparisons] == [
        ("arithmetic", "baseline"),
        ("general", "baseline"),
    ]


def test_a_task_that_fell_or_cannot_have_gained_enough_holds() -> None:
    fell = decide([suite(SuiteRole.task, 300, 40, 10)], RULES)
    assert (fell.verdict, fell.reasons) == (
        "hold",
        ["task: 0.500 -> 0.400 (-0.100, 95% interval -0.148 to -0.055): worse than before"],
    )
    short = decide([BETTER], Rules(min_gain=0.2))
    assert (short.verdict, short.reasons) == (
        "hold",
        [
            "task arithmetic: 0.500 -> 0.600 (+0.100, 95% interval +0.055 to +0.148): "
            "the gain is surely below min_gain 0.2"
        ],
    )


def test_too_few_rows_are_inconclusive_and_say_how_many_would_decide() -> None:
    found = decide([suite(SuiteRole.task, 300, 25, 31, name="arithmetic")], RULES)
    assert found.verdict == "inconclusive"
    assert found.reasons == [
        "task arithmetic: 0.500 -> 0.520 (+0.020, 95% interval -0.030 to +0.070): 300 rows cannot tell; about 3,700 "
        "would, if the gain is real (they show a change of 0.072 in 4 of 5 cases)"
    ]
    part = one(found, "arithmetic")
    # By hand: half an interval of 0.0504 times (1.96 + 0.84) / 1.96 is 0.072; (1.96 + 0.84)^2 variances over 0.02^2.
    assert part.detectable == pytest.approx(0.072, abs=5e-4)
    assert part.rows_needed == pytest.approx(2.8016**2 * (56 / 300 - 0.02**2) / 0.02**2, rel=0.02)


def test_the_rows_that_are_named_decide_in_four_of_five_cases() -> None:
    quick = Rules(resamples=1000)
    needed = one(decide([suite(SuiteRole.task, 100, 8, 16)], quick), "task").rows_needed
    assert needed is not None
    draw = random.Random(0)
    shipped = 0
    for _ in range(60):
        kinds = draw.choices((-1, 0, 1), (8, 76, 16), k=needed)
        shipped += decide([suite(SuiteRole.task, needed, kinds.count(-1), kinds.count(1))], quick).verdict == "ship"
    assert 200 < needed < 400
    assert 0.65 < shipped / 60 < 0.95


def test_a_guard_on_few_rows_does_not_pass_because_nothing_was_seen() -> None:
    found = decide([BETTER, suite(SuiteRole.general, 60, 0, 0)], RULES)
    assert found.verdict == "inconclusive"
    assert found.reasons == [
        "general: 0.500 -> 0.500 (+0.000, 95% interval -0.063 to +0.063): a drop of more than 0.05 is not excluded: "
        "60 rows cannot tell; about 110 would, if the difference is real (they show a change of 0.089 in 4 of 5 cases)"
    ]
    assert decide([BETTER, suite(SuiteRole.general, 100, 0, 0)], RULES).verdict == "ship"


def test_a_guard_must_exclude_a_drop_of_twice_its_tolerance_more_surely() -> None:
    rose = replace(suite(SuiteRole.general, 100, 18, 31), tolerance=0.012)
    found = decide([BETTER, rose], RULES)
    assert one(found, "general").low > -0.012
    assert found.verdict == "inconclusive"
    assert "a drop of more than twice 0.012 (level 0.005) is not excluded" in found.reasons[0]


@pytest.mark.parametrize("rows", [5, 20, 300, 2000])
def test_the_same_model_never_ships(rows: int) -> None:
    same = [suite(role, rows, 0, 0) for role in SuiteRole]
    found = decide(same, RULES)
    assert found.verdict == "inconclusive"
    assert one(found, "task").rows_needed is None
    assert "more would hardly" in found.reasons[0]
    assert decide(same, Rules(min_gain=0.05)).verdict == ("inconclusive" if rows < 80 else "hold")


def test_a_gain_of_exactly_min_gain_counts() -> None:
    assert decide([BETTER], Rules(min_gain=0.1)).verdict == "ship"
    found = decide([BETTER], Rules(min_gain=0.12))
    assert found.verdict == "inconclusive"
    assert "better, but by min_gain 0.12? 300 rows cannot tell" in found.reasons[0]


def test_drift_above_its_ceiling_holds_and_unknown_drift_does_not_ship() -> None:
    held = decide([BETTER], Rules(max_drift=0.1), drift=0.2)
    assert (held.verdict, held.reasons) == (
        "hold",
        ["drift: 0.2 nats per token from the original base, above max_drift 0.1"],
    )
    assert decide([BETTER], Rules(max_drift=0.1), drift=float("nan")).verdict == "hold"
    unknown = decide([BETTER], Rules(max_drift=0.1))
    assert unknown.verdict == "inconclusive"
    assert unknown.reasons[0].startswith("drift: not known")
    assert decide([BETTER], RULES, drift=9.0).verdict == "ship"


def test_noise_widens_the_interval_on_both_sides() -> None:
    exact, noisy = (one(decide([replace(BETTER, noise=noise)], RULES), "arithmetic") for noise in (0.0, 0.01))
    assert (noisy.low, noisy.high) == pytest.approx((exact.low - 0.01, exact.high + 0.01))
    assert noisy.detectable == pytest.approx(exact.detectable + 0.01)
    undecided = decide([replace(BETTER, noise=0.11)], RULES)
    assert undecided.verdict == "inconclusive"
    assert one(undecided, "arithmetic").rows_needed is None  # more rows do not lessen noise


def test_samples_of_a_row_are_one_piece_of_evidence() -> None:
    def repeated(scores: Scores) -> Scores:
        return [list(row) * 8 for row in scores]

    once = suite(SuiteRole.task, 40, 2, 7)
    eight = replace(once, candidate=repeated(once.candidate), baseline=repeated(once.baseline))
    assert decide([eight], RULES) == decide([once], RULES)
    assert decide([eight], RULES).verdict == "inconclusive"  # 16 gains against 56 would be sure, were they independent


def test_the_order_of_suites_and_rows_does_not_matter() -> None:
    draw = random.Random(1)
    suites = [BETTER, suite(SuiteRole.task, 300, 8, 50, name="algebra"), KEPT, suite(SuiteRole.safety, 400, 9, 9)]
    graded = [[draw.random()] for _ in range(200)]
    suites.append(
        replace(KEPT, name="graded", baseline=graded, candidate=[[s * 1.01] for (s,) in graded], anchor=graded)
    )
    expected = decide(suites, RULES)
    for _ in range(3):
        draw.shuffle(suites)
        order = draw.sample(range(200), 200)
        graded_last = [_reordered(part, order) if part.name == "graded" else part for part in suites]
        assert decide(graded_last, RULES) == expected
    assert [part.role for part in expected.comparisons][:2] == [SuiteRole.task] * 2


def _reordered(part: SuiteScores, order: list[int]) -> SuiteScores:
    assert part.anchor is not None
    return replace(
        part,
        candidate=[part.candidate[row] for row in order],
        baseline=[part.baseline[row] for row in order],
        anchor=[part.anchor[row] for row in order],
    )


@pytest.mark.parametrize("suites", [[], [KEPT]])
def test_without_a_task_suite_there_is_nothing_to_decide(suites: list[SuiteScores]) -> None:
    with pytest.raises(UserError, match=r"a gate needs a suite with `role: task`.*: (none|general)$"):
        decide(suites, RULES)


def test_scores_that_cannot_be_compared_are_errors() -> None:
    with pytest.raises(UserError, match=r"suite arithmetic: there is no row"):
        decide([replace(BETTER, candidate=[], baseline=[])], RULES)
    with pytest.raises(ValueError, match=r"suite arithmetic: 299 rows of the candidate, 300 of the baseline"):
        decide([replace(BETTER, candidate=BETTER.candidate[1:])], RULES)
    with pytest.raises(ValueError, match=r"suite arithmetic: a score of the candidate is not a finite number"):
        decide([replace(BETTER, candidate=[[float("nan")], *BETTER.candidate[1:]])], RULES)


def test_four_suites_of_500_rows_are_decided_at_once() -> None:
    draw = random.Random(2)
    scores = [[[draw.random()] for _ in range(500)] for _ in range(3)]
    suites = [
        SuiteScores(
            name=role.value, role=role, tolerance=0.05, candidate=scores[0], baseline=scores[1], anchor=scores[2]
        )
        for role in SuiteRole
    ]
    started = time.process_time()
    decide(suites, RULES)
    assert time.process_time() - started < 10  # about 1, where nothing else runs
