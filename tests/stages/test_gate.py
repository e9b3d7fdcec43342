"""The gate as a stage: what it scores, what it leaves, and that its verdict is the decision's."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from conf.measuring import GateConfig
from conf.rewards import load_rewards
from conf.schema import SuiteRole
from conf.training import SFTConfig
from stages.contract import ModelRef, StageContext, Suite
from stages.gate import questions, run_gate
from stages.rows import Row, write_rows
from stages.sft import run_sft

EXACT = load_rewards({"exact": {"type": "exact"}})
WORDS = ("red", "blue", "green", "pink", "grey")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate")


@pytest.fixture(scope="module")
def trained(tiny: ModelRef, folder: Path) -> ModelRef:
    """A model that answers `yes` to everything."""
    rows = [Row(prompt=f"{word} {number}?", response="yes") for word in WORDS for number in range(8)]
    out = folder / "sft"
    out.mkdir()
    data = {"train": write_rows(folder / "train.jsonl", rows)}
    ctx = StageContext(models={"start": tiny}, out_dir=out, seed=0, data=data)
    settings = SFTConfig(learning_rate=2e-2, max_steps=30, batch_size=8, n_samples=0)
    return run_sft(settings, ctx).model


def suite(folder: Path, reference: str, role: SuiteRole, rows: int = 60) -> Suite:
    path = folder / f"{reference}-{rows}.jsonl"
    write_rows(path, [Row(prompt=f"{WORDS[row % 5]} {row}?", reference=reference) for row in range(rows)])
    return Suite(role=role, rows=path, rewards=EXACT, max_new_tokens=4, id=f"{reference}-{rows}")


def context(folder: Path, tmp_path: Path, suites: dict[str, Suite], **models: ModelRef) -> StageContext:
    return StageContext(models=models, out_dir=tmp_path, seed=0, suites=suites, scores=folder / "scores")


def test_a_better_model_ships(tiny: ModelRef, trained: ModelRef, folder: Path, tmp_path: Path) -> None:
    suites = {"task": suite(folder, "yes", SuiteRole.task), "no": suite(folder, "no", SuiteRole.general, rows=200)}
    result = run_gate(GateConfig(), context(folder, tmp_path, suites, start=trained, baseline=tiny, anchor=tiny))
    assert result.verdict == "ship"
    assert result.model == trained
    assert result.metrics["task.candidate"] == 1.0
    assert result.metrics["gain.task.baseline"] == 1.0 > result.metrics["gain.task.baseline.low"] > 0.8
    assert result.metrics["gain.no.anchor"] == 0.0 > result.metrics["gain.no.anchor.low"] > -0.05
    decision = json.loads((tmp_path / "decision.json").read_text())
    assert decision["verdict"] == "ship"
    assert [each["against"] for each in decision["comparisons"]] == ["baseline", "baseline", "anchor"]
    assert "SHIP" in result.report and "task" in result.report


def test_what_a_guard_lost_is_held(tiny: ModelRef, trained: ModelRef, folder: Path, tmp_path: Path) -> None:
    """The same two models the other way round: the one guard falls from 1 to 0."""
    suites = {"task": suite(folder, "no", SuiteRole.task), "yes": suite(folder, "yes", SuiteRole.general)}
    result = run_gate(GateConfig(), context(folder, tmp_path, suites, start=tiny, baseline=trained))
    assert result.verdict == "hold"
    assert any("yes" in reason for reason in json.loads((tmp_path / "decision.json").read_text())["reasons"])


@pytest.mark.parametrize("same", ["base", "trained"])
def test_a_model_never_ships_against_itself(
    tiny: ModelRef, trained: ModelRef, folder: Path, tmp_path: Path, same: str
) -> None:
    model = {"base": tiny, "trained": trained}[same]
    suites = {"task": suite(folder, "yes", SuiteRole.task)}
    result = run_gate(GateConfig(), context(folder, tmp_path, suites, start=model, baseline=model))
    assert result.verdict == "inconclusive"
    assert result.metrics["gain.task.baseline"] == 0


def test_too_few_rows_say_how_many_are_needed(tiny: ModelRef, trained: ModelRef, folder: Path, tmp_path: Path) -> None:
    suites = {"task": suite(folder, "yes", SuiteRole.task), "no": suite(folder, "no", SuiteRole.general, rows=10)}
    result = run_gate(GateConfig(), context(folder, tmp_path, suites, start=trained, baseline=tiny))
    assert result.verdict == "inconclusive"
    (guard,) = [each for each in _comparisons(tmp_path) if each["suite"] == "no"]
    assert 40 < guard["rows_needed"] < 400
    assert str(guard["rows_needed"]) in result.report.replace(",", "")


def test_names_and_roles_do_not_make_scores_anew(
    tiny: ModelRef, trained: ModelRef, folder: Path, tmp_path: Path
) -> None:
    known = suite(folder, "yes", SuiteRole.task)
    ctx = context(folder, tmp_path, {"task": known}, start=trained, baseline=tiny)
    run_gate(GateConfig(), ctx)
    said: list[str] = []
    other = replace(known, role=SuiteRole.task, tolerance=0.2)
    run_gate(GateConfig(min_gain=0.5), replace(ctx, suites={"renamed": other}, say=said.append))
    assert said == ["baseline: its scores are known", "candidate: its scores are known"]


def _comparisons(folder: Path) -> list[dict[str, object]]:
    comparisons: list[dict[str, object]] = json.loads((folder / "decision.json").read_text())["comparisons"]
    return comparisons


def test_rows_that_ask_the_same_are_no_further_evidence(
    tiny: ModelRef, trained: ModelRef, folder: Path, tmp_path: Path
) -> None:
    """Four questions, each of them asked fifteen times, with ever more white space."""
    rows = [Row(prompt=f"{WORDS[row % 4]} {' ' * (row // 4)}?", reference="yes") for row in range(60)]
    path = write_rows(folder / "four.jsonl", rows)
    four = Suite(role=SuiteRole.task, rows=path, rewards=EXACT, max_new_tokens=4, id="four")
    said: list[str] = []
    ctx = replace(context(folder, tmp_path, {"task": four}, start=trained, baseline=tiny), say=said.append)
    assert run_gate(GateConfig(), ctx).verdict == "inconclusive"
    assert [each["rows"] for each in _comparisons(tmp_path)] == [4]
    assert "task: 60 rows ask 4 questions; those that ask the same count as one" in said


def test_one_prompt_under_many_system_messages_is_many_questions(folder: Path) -> None:
    rows = [Row(prompt="yes?", system=f"You are {number}.") for number in range(3)]
    rows += [Row(messages=[*row.conversation[:1], {"role": "user", "content": "yes?"}]) for row in rows]
    suite = Suite(role=SuiteRole.task, rows=write_rows(folder / "systems.jsonl", rows), rewards=EXACT, max_rows=5)
    asked = questions(suite)
    assert len(asked) == 5 and len(set(asked)) == 3
