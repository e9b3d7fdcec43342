"""Tasks of reasoning-gym: rows and their scorer, what is refused, and what determines the rows."""

import functools
import importlib.util
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError, UserError
from conf.rewards import load_rewards
from conf.schema import DataConfig
from rewards.gym import RUNS_REPLIES
from rewards.library import build
from rewards.scoring import RewardSet, Score
from stages.data import data_identity, prepare_data
from stages.rows import Row, read_rows
from stages.sources import read_source

pytest.importorskip("reasoning_gym", reason='needs "ratchet[gym]"')

SMALL = {"size": 60, "seed": 3}
VARIED = [
    "ab", "base_conversion", "caesar_cipher", "calendar_arithmetic", "circuit_logic", "course_schedule",
    "family_relationships", "fraction_simplification", "isomorphic_strings", "letter_counting", "maze",
    "number_filtering", "prime_factorization", "sudoku", "syllogism", "time_intervals", "word_sorting",
]  # fmt: skip


def config(task: str, **args: Any) -> DataConfig:
    return DataConfig(source=f"gym:{task}", args=args, prompt="question", response="answer", reference="answer")


def prepared(task: str, folder: Path, **args: Any) -> list[Row]:
    paths = prepare_data(config(task, **args), 0.4, folder / "out", folder)
    return [row for path in paths.values() for row in read_rows(path)]


def scored(row: Row | dict[str, Any], completion: str, **settings: Any) -> Score:
    columns = row.row if isinstance(row, Row) else row
    return reward_set(json.dumps(settings)).score("", completion, None, columns)


@functools.cache
def reward_set(settings: str) -> RewardSet:
    """One set, and so one worker process, for all samples of the same settings."""
    return RewardSet(load_rewards({"it": {"type": "gym", **json.loads(settings)}}))


def one(task: str, **args: Any) -> dict[str, Any]:
    (record,) = read_source(config(task, size=1, **args), Path())
    return record.values


@pytest.mark.parametrize("task", VARIED)
def test_the_right_answer_of_a_prepared_row_gets_full_marks(task: str, tmp_path: Path) -> None:
    for row in prepared(task, tmp_path, size=30, seed=5):
        assert row.prompt == row.row["question"] and row.response == row.reference == row.row["answer"]
        assert scored(row, f" {row.reference}\n").values == {"it": 1.0}


def test_sums_are_right_and_other_numbers_get_nothing(tmp_path: Path) -> None:
    for row in prepared("chain_sum", tmp_path, **SMALL, min_terms=2, max_terms=2, min_digits=2, max_digits=2):
        left, sign, right = re.fullmatch(r"State .* problem: (\d\d) ([+-]) (\d\d) =", row.prompt or "").groups()
        answer = int(left) + int(right) * (1 if sign == "+" else -1)
        assert row.reference == str(answer)
        assert [scored(row, text).values["it"] for text in (f"{answer}", f"{answer + 1}", "")] == [1, 0, 0]


def test_the_answer_inside_a_tag() -> None:
    row = one("chain_sum")
    reply = f"<answer>x</answer> no: <answer> {row['answer']} </answer>."
    assert scored(row, reply, tag="answer").values == {"it": 1.0}
    none = scored(row, row["answer"], tag="answer")
    assert none.values == {"it": 0.0} and none.explanations["it"] == "has no <answer>...</answer>"


def test_partial_credit_can_be_left_out() -> None:
    row = one("letter_counting")
    reply = f"{row['answer']} times"
    assert 0 < scored(row, reply).values["it"] < 1
    assert scored(row, reply, partial=False).values == {"it": 0.0}
    assert scored(row, row["answer"], partial=False).values == {"it": 1.0}


def test_a_scorer_that_raises_is_an_error_and_no_zero() -> None:
    score = scored(one("prime_factorization"), "seven")
    assert score.values == {}
    assert score.errors["it"].startswith("the scorer of 'prime_factorization' fails on 'seven': ValueError: ")


@pytest.mark.parametrize("column", ["question", "metadata", "task"])
def test_a_row_of_another_source(column: str) -> None:
    row = one("chain_sum")
    del row[column]
    assert scored(row, "1").errors["it"] == f"the row has no '{column}'; this reward takes rows of a source gym:<task>"


def test_the_settings_of_the_task_reach_its_scorer() -> None:
    row = one("decimal_arithmetic", max_num_decimal_places=3, precision=6)
    near = str(float(row["answer"]) + 5e-3)
    assert scored(row, near).values["it"] < 1
    row["config"] = {**row["config"], "max_num_decimal_places": 2}
    assert scored(row, near).values["it"] == 1


HOSTILE = ("__import__('pathlib').Path({path!r}).touch()", "[__import__('pathlib').Path({path!r}).touch()]")


@pytest.mark.parametrize("task", sorted(RUNS_REPLIES))
def test_scorers_that_run_the_reply_need_the_users_word(task: str, tmp_path: Path) -> None:
    row, hit = one(task), tmp_path / "hit"
    for text in HOSTILE:
        reply = text.format(path=str(hit))
        assert "runs_replies: true" in scored(row, reply).errors["it"]
    assert not hit.exists()
    for text in HOSTILE:
        scored(row, text.format(path=str(hit)), runs_replies=True)
    assert hit.exists(), "the library does not run replies of this task any more: take it off the list"


def test_no_other_scorer_runs_the_reply() -> None:
    from reasoning_gym.factory import DATASETS

    runs = re.compile(r"\b(eval|exec|compile|parse_expr|sympify|simplify)\(")
    found = {name for name, (dataset, _) in DATASETS.items() if runs.search(inspect.getsource(dataset.score_answer))}
    assert found - {"number_sorting"} == RUNS_REPLIES, "number_sorting runs nothing but its own answer"


TASK_ERRORS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("chain_sums", {}, ["no task 'chain_sums'", "did you mean 'chain_sum'"]),
    ("qqq", {}, ["no task 'qqq'", "there are ab, acre"]),
    ("composite", {}, ["data source of its own"]),
    ("chain_sum", {"min_term": 2}, ["args.min_term: unknown key; did you mean 'min_terms'?"]),
    ("chain_sum", {"min_terms": 0}, ["args: 'chain_sum' refuses", "min_terms must be positive"]),
    ("chain_sum", {"min_terms": "two"}, ["refuses", "'str' and 'int'"]),
    ("chain_sum", {"seed": None}, ["args.seed: expected a whole number, got None"]),
    ("rearc", {"size": 2}, ["row 1", "gives its own answer 0.05, not 1, once the row is JSON"]),
    ("graph_color", {"size": 2}, ["row 1", "has no answer of its own"]),
]


@pytest.mark.parametrize(("task", "args", "parts"), TASK_ERRORS)
def test_task_errors(task: str, args: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        read_source(config(task, **args), Path())
    message = str(caught.value)
    assert message.startswith(f"gym:{task}") and all(part in message for part in parts), message


@pytest.fixture
def uninstalled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "reasoning_gym" else find(name, *rest)
    )
    yield


def test_without_the_library(uninstalled: None) -> None:
    hint = re.escape('needs the library reasoning-gym: pip install "ratchet[gym]"')
    for use in (
        lambda: read_source(config("chain_sum"), Path()),
        lambda: data_identity(config("chain_sum"), Path()),
        lambda: build(load_rewards({"it": {"type": "gym"}})["it"]),
    ):
        with pytest.raises(ConfigError, match=hint):
            use()


def test_same_rows_for_the_same_seed_and_another_identity_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(**args: Any) -> str:
        return json.dumps([record.values for record in read_source(config("chain_sum", size=9, **args), Path())])

    assert rows() == rows() != rows(seed=1)
    settings = [{}, {"seed": 1}, {"size": 9}, {"min_terms": 3}]
    identities = {data_identity(config("chain_sum", **args), Path()) for args in settings}
    identities.add(data_identity(config("products"), Path()))
    assert len(identities) == 5
    assert data_identity(config("chain_sum", seed=0), Path()) in identities, "0 is the seed when there is none"
    monkeypatch.setattr("stages.sources.gym.version", lambda name: f"{name} of tomorrow")
    assert data_identity(config("chain_sum"), Path()) not in identities


@pytest.mark.parametrize("tag", ["", "<answer>", "a b"])
def test_a_tag_is_a_name(tag: str) -> None:
    with pytest.raises(ConfigError, match=r"reward\.it\.tag: expected a name"):
        load_rewards({"it": {"type": "gym", "tag": tag}})
