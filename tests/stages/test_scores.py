"""Scores of models on suites: the same whatever the batch, kept for all who need them, made again when damaged."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.measuring import ScoringConfig
from conf.rewards import load_rewards
from conf.schema import SuiteRole
from rewards.contract import RewardError
from stages.contract import Hardware, Interrupted, ModelRef, Suite
from stages.kept_scores import KeptScores
from stages.rows import Row, read_rows, write_rows
from stages.scores import RowScore, Scored, noise_of_mean, score_models

REWARDS = load_rewards({"length": {"type": "length", "min_chars": 5, "max_chars": 10}})
"""Even random replies earn different parts of it."""
BATCH_SIZES = (1, 4, 6)


@pytest.fixture
def suite(rows: list[Row], tmp_path: Path) -> Suite:
    """Six rows of different lengths."""
    questions = [replace(row, prompt=f"{row.prompt} " * (1 + number % 3)) for number, row in enumerate(rows[:6])]
    path = write_rows(tmp_path / "rows.jsonl", questions)
    return Suite(id="a", role=SuiteRole.task, rows=path, rewards=REWARDS, max_new_tokens=6)


Score = Callable[..., Scored]


@pytest.fixture
def score(context: Any, suite: Suite, tiny: ModelRef, tmp_path: Path) -> Score:
    """Scores models as a new stage does, with what others have kept."""
    stages = iter(range(100))

    def score(
        models: dict[str, ModelRef] | None = None, suites: dict[str, Suite] | None = None, **changes: Any
    ) -> Scored:
        models = models or {"base": tiny}
        cfg = ScoringConfig(recheck=changes.pop("recheck", 0), batch_size=changes.pop("batch_size", 4))
        changes = {"scores": tmp_path / "scores", "models": {"start": next(iter(models.values()))}, **changes}
        return score_models(models, cfg, context(f"stage{next(stages)}", suites=suites or {"task": suite}, **changes))

    return score


@pytest.fixture
def gone(tiny: ModelRef, tmp_path: Path) -> ModelRef:
    """The tiny model by its identity, with a directory that is not there any more."""
    return replace(tiny, config=replace(tiny.config, id=str(tmp_path / "gone")))


def files(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "scores").glob("*.json")}


def replies(scored: Scored) -> list[tuple[str, float]]:
    return [(row.completion, row.score) for row in scored.rows]


def test_no_batch_size_and_no_order_changes_a_score(score: Score, suite: Suite, tmp_path: Path) -> None:
    first, *others = (score(batch_size=size) for size in BATCH_SIZES)
    assert len(first.rows) == 6 and len(set(replies(first))) > 3
    for other in others:
        assert other.rows == first.rows
    backwards = write_rows(tmp_path / "backwards.jsonl", reversed(read_rows(suite.rows)))
    turned = score(suites={"task": replace(suite, id="b", rows=backwards)})
    assert replies(turned) == replies(first)[::-1]


def test_scores_are_found_again_by_whoever_needs_them(score: Score, suite: Suite, gone: ModelRef) -> None:
    made = score(recheck=4)
    renamed = replace(suite, role=SuiteRole.general, tolerance=0.3)
    found = score({"anchor": gone}, {"kept": renamed}, recheck=4, seed=7)
    assert found.rows == [replace(row, suite="kept", model="anchor") for row in made.rows]
    assert (found.noise, found.receipts) == ({"kept": made.noise["task"]}, made.receipts)
    assert found.of("kept", "anchor") == [[row.score] for row in made.rows]


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 3},
        {"hardware": Hardware(threads=2)},
        {"scores": None},
        {"suite": {"id": "b"}},
        {"suite": {"id": ""}},
        {"config": {"stop_tokens": ["x"]}},
        {"config": {"chat_template": "{{ messages[0]['content'] }}"}},
        {"config": {"chat_template_kwargs": {"thinking": False}}},
    ],
)
def test_what_determines_scores_makes_others(
    change: dict[str, Any], score: Score, suite: Suite, gone: ModelRef
) -> None:
    score()
    gone = replace(gone, config=replace(gone.config, **change.pop("config", {})))
    suites = {"task": replace(suite, **change.pop("suite", {}))}
    with pytest.raises(OSError, match="gone"):
        score({"base": gone}, suites, **change)


@pytest.mark.parametrize(
    "harm", [lambda text: text[:-9], lambda text: text.replace("0.5", "0.6"), lambda _: "", lambda _: "[]"]
)
def test_damaged_scores_are_made_again(harm: Callable[[str], str], tmp_path: Path) -> None:
    made = {"rows": [{"score": 0.5}]}
    assert KeptScores(tmp_path).get({"a": 1}, lambda: made, fail) == made
    (path,) = tmp_path.glob("*.json")
    whole = path.read_text()
    assert KeptScores(tmp_path).get({"a": 1}, fail, fail) == made
    path.write_text(harm(whole))
    assert KeptScores(tmp_path).get({"a": 1}, lambda: made, fail) == made
    assert path.read_text() == whole


def fail() -> None:
    raise AssertionError("not to be called")


def test_two_that_need_the_same_scores_make_them_once(tmp_path: Path) -> None:
    waits = threading.Event()
    found = []

    def wait() -> None:
        waits.set()

    def make() -> list[int]:
        assert waits.wait(60)
        return [1]

    def second() -> None:
        found.append(KeptScores(tmp_path).get({"a": 1}, lambda: [2], wait))

    begun = threading.Thread(target=second)

    def make_first() -> list[int]:
        begun.start()
        return make()

    assert KeptScores(tmp_path).get({"a": 1}, make_first, wait) == [1]
    begun.join()
    assert found == [[1]]


def test_an_interrupted_stage_goes_on_with_the_batches_it_has(
    context: Any, suite: Suite, tiny: ModelRef, tmp_path: Path
) -> None:
    def progress(what: str, done: int, total: int) -> None:
        asked.append((what, done, total))
        if len(asked) == 2:
            raise Interrupted("now")

    asked: list[tuple[str, int, int]] = []
    ctx = context("stage", suites={"task": suite}, scores=tmp_path / "scores", progress=progress)
    cfg = ScoringConfig(batch_size=2, recheck=0)
    with pytest.raises(Interrupted):
        score_models({"base": tiny}, cfg, ctx)
    assert not files(tmp_path)
    lines = (ctx.out_dir / "replies.jsonl").read_text().splitlines()
    assert len(lines) == 2
    done = score_models({"base": tiny}, cfg, ctx)
    assert (ctx.out_dir / "replies.jsonl").read_text().splitlines()[:2] == lines
    whole = score_models({"base": tiny}, cfg, context("whole", suites={"task": suite}))
    assert done.rows == whole.rows


def test_samples_depend_on_the_seed_and_on_nothing_beside_them(score: Score, suite: Suite, tiny: ModelRef) -> None:
    sampled = replace(suite, id="s", samples=3, temperature=2.0)
    made = score(suites={"task": sampled})
    assert [(row.row, row.sample) for row in made.rows] == [(row, sample) for row in range(6) for sample in range(3)]
    assert [len(scores) for scores in made.of("task", "base")] == [3] * 6
    assert len({row.completion for row in made.rows}) > 15
    again = score({"base": tiny}, {"first": suite, "task": sampled}, scores=None)
    assert [row for row in again.rows if (row.suite, row.model) == ("task", "base")] == made.rows
    assert replies(score(suites={"task": sampled}, seed=1)) != replies(made)
    assert score(suites={"task": sampled}, recheck=4).noise == {"task": 0}  # of chance there is no noise floor


def test_the_start_model_is_measured_again_in_other_batches(score: Score, context: Any, gone: ModelRef) -> None:
    assert score(recheck=4).noise == {"task": 0}
    assert [asked for asked in context.progress if "again" in asked[0]][-1] == ("task: base, again", 4, 4)
    assert score({"other": gone}, recheck=4).noise == {"task": 0}  # and that is known from then on
    assert score({"start": gone}, recheck=0).noise == {"task": 0}


def test_noise_is_the_standard_deviation_of_the_whole_mean() -> None:
    # one of 4 rows changed by 1: a row's variance is 1/4, that of a mean over 100 rows 1/400
    assert noise_of_mean([1, 0, 1, 1], [1, 1, 1, 1], rows=100) == pytest.approx(1 / 20)


def test_a_reward_that_fails_names_suite_row_and_model(score: Score, suite: Suite) -> None:
    fails = load_rewards({"form": {"type": "fields", "column": "none"}})
    with pytest.raises(RewardError, match="suite task, row 1, answered by base: reward 'form' failed"):
        score(suites={"task": replace(suite, rewards=fails)})
    with pytest.raises(RewardError, match="suite task, row 1, answered by base: reward 'form' failed"):
        score(suites={"task": replace(suite, id="b", information=fails)})


def test_rows_tell_what_was_measured(score: Score, tiny: ModelRef) -> None:
    row = score().rows[3]
    assert isinstance(row, RowScore)
    assert (row.row, row.sample, row.suite, row.model) == (3, 0, "task", "base")
    assert row.values == {"length": row.score} and row.characters == len(row.completion)
    assert row.truncated == (row.tokens == 6) and row.prompt_tokens > 10
