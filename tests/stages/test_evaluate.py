"""Evaluation: which models are compared under which names, and how scores become numbers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from conf.measuring import EvaluateConfig
from conf.rewards import load_rewards
from conf.schema import SuiteRole
from conf.training import SFTConfig
from rewards.scoring import RewardSet
from stages.contract import Adapter, ModelRef, Suite
from stages.evaluate import models_to_compare, run_evaluate
from stages.rows import Row, read_rows, write_rows
from stages.score_metrics import gains, summary
from stages.scores import RowScore
from stages.sft import run_sft

REWARDS = load_rewards({"exact": {"type": "exact"}})
LENGTH = load_rewards({"length": {"type": "length", "min_chars": 2, "max_chars": 3}})
TOLERANT = load_rewards({"form": {"type": "fields", "column": "none", "on_error": "score", "error_value": 0}})


def adapter(name: str) -> Adapter:
    return Adapter(path=Path(name), sha256=name)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            {"start": "ab", "baseline": "", "chain.base": "", "chain.sft": "a", "chain.dpo": "ab"},
            {"base": "", "sft": "a", "dpo": "ab"},
        ),
        ({"start": "ab", "chain.base": "", "chain.sft": "a", "chain.dpo": "ab"}, {"base": "", "sft": "a", "dpo": "ab"}),
        ({"start": "ab", "baseline": "x", "chain.sft": "a"}, {"baseline": "x", "sft": "a", "start": "ab"}),
        ({"start": "a", "chain.sft": "a", "chain.pairs": "a"}, {"sft": "a"}),
        ({"chain.sft": "a", "models.other": "x", "start": "a", "baseline": ""}, {"base": "", "sft": "a", "other": "x"}),
        ({"start": ""}, {"start": ""}),
        ({"start": "", "baseline": ""}, {"base": ""}),
    ],
)
def test_each_model_once_in_order(tiny: ModelRef, names: dict[str, str], expected: dict[str, str]) -> None:
    def model(letters: str) -> ModelRef:
        return replace(tiny, adapters=tuple(map(adapter, letters)))

    compared = models_to_compare({key: model(letters) for key, letters in names.items()})
    assert list(compared.items()) == [(label, model(letters)) for label, letters in expected.items()]


def replies(scores: dict[str, list[float]], suite: str = "task") -> list[RowScore]:
    """One reply per row and model, with these scores."""
    numbered = [(model, row, score) for model, values in scores.items() for row, score in enumerate(values)]
    return [reply(suite, model, row, 0, score) for model, row, score in numbered]


def reply(suite: str, model: str, row: int, sample: int, score: float) -> RowScore:
    """A reply with a score; all else is made up."""
    return RowScore(
        suite=suite,
        row=row,
        sample=sample,
        model=model,
        score=score,
        values={"exact": score},
        completion="seven",
        tokens=2 + row,
        characters=5,
        truncated=row == 0,
        prompt_tokens=9,
        information={"length": score / 2},
    )


def test_mean_and_standard_error() -> None:
    metrics = summary(replies({"sft": [1.0, 0.0, 1.0, 1.0], "base": [0.5]}))
    # sd of (1, 0, 1, 1) with n - 1 is 0.5, over the root of 4 rows
    assert (metrics["task.sft"], metrics["task.sft.stderr"]) == (0.75, 0.25)
    assert metrics["task.base"] == 0.5 and "task.base.stderr" not in metrics
    assert (metrics["tokens.task.sft"], metrics["truncated.task.sft"]) == (3.5, 0.25)
    assert metrics["information.task.sft.length"] == 0.375


def test_several_samples_of_a_row_are_one_observation() -> None:
    rows = [reply("task", "sft", row, sample, score) for row, score in enumerate((1.0, 0.0)) for sample in range(9)]
    metrics = summary(rows)
    assert (metrics["task.sft"], metrics["rows.task"]) == (0.5, 2)
    assert metrics["task.sft.stderr"] == pytest.approx(0.5)  # as of two rows, not of 18


def test_the_gain_of_every_training_is_paired_by_row(tiny: ModelRef) -> None:
    sft = tiny.with_adapter(adapter("a"))
    models = {
        "other": sft.with_adapter(adapter("x")),
        "base": tiny,
        "sft": sft,
        "far": sft.base.with_adapter(adapter("b")),
    }
    scores = {"other": [0.0, 1.0, 0.0], "base": [0.0, 1.0, 1.0], "sft": [0.5, 1.0, 1.0], "far": [0.0, 1.0, 1.0]}
    found = gains(replies(scores), models)
    assert found["gain.task.sft"] == pytest.approx(1 / 6)
    assert found["gain.task.sft.stderr"] == pytest.approx(1 / 6)  # of the differences (1/2, 0, 0)
    assert found["gain.task.other"] == pytest.approx(-0.5)
    assert (found["gain.task.far"], found["gain.task.far.stderr"]) == (0, 0)
    assert "gain.task.base" not in found


def test_all_models_answer_the_same_rows(context: Any, tiny: ModelRef) -> None:
    lesson = [Row(prompt=f"{index}?", response="7", reference=str(7 + index % 2)) for index in range(8)]
    data = {**context.defaults["data"], "train": write_rows(context.folder / "lesson.jsonl", lesson)}
    cfg = SFTConfig(batch_size=8, max_steps=20, learning_rate=2e-2, n_samples=0)
    trained = run_sft(cfg, context("sft", data=data)).model
    suites = {
        "task": Suite(role=SuiteRole.task, rows=data["train"], rewards=REWARDS, information=LENGTH, max_new_tokens=4),
        "kept": Suite(role=SuiteRole.general, rows=data["gate"], rewards={**REWARDS, **TOLERANT}, max_new_tokens=4),
    }
    models = {"start": trained, "baseline": tiny, "chain.sft": trained}
    result = run_evaluate(EvaluateConfig(n_samples=2), context("evaluate", models=models, suites=suites))

    records = parquet.read_table(result.artifacts["scores"]).to_pylist()
    assert [(r["suite"], r["model"], r["row"]) for r in records] == [
        (suite, model, row) for suite, n in (("task", 8), ("kept", 5)) for model in ("base", "sft") for row in range(n)
    ]
    assert (result.metrics["failed_scores"], result.metrics["failed_form"]) == (10, 10)  # 5 rows, two models
    assert all(record["error.form"] for record in records if record["suite"] == "kept")
    rewards = RewardSet({**REWARDS, **LENGTH})
    rows = {"task": read_rows(data["train"])[:8], "kept": read_rows(data["gate"])}
    for record in records:
        row = rows[record["suite"]][record["row"]]
        values = rewards.score(row.prompt_text, record["completion"], row.reference, row.row).values
        assert (record["score"], record["reward.exact"]) == (values["exact"], values["exact"])
        assert record["information.length"] == (values["length"] if record["suite"] == "task" else None)
        assert (record["prompt"], record["reference"]) == (row.prompt_text, str(row.reference))
        assert record["characters"] == len(record["completion"])
        assert 1 <= record["tokens"] <= 4 and (record["tokens"] == 4 or not record["truncated"])
    scores = [record["score"] for record in records if (record["suite"], record["model"]) == ("task", "sft")]
    assert result.metrics["task.sft"] == result.metrics["gain.task.sft"] == sum(scores) / 8
    assert (result.metrics["task.base"], result.metrics["task.sft"]) == (0.0, 0.5)  # says 7, and every other is 7
    assert (result.metrics["rows.task"], result.metrics["rows.kept"]) == (8, 5)
    assert (result.metrics["noise.task"], result.metrics["noise.kept"]) == (0, 0)
    samples = [json.loads(line) for line in result.artifacts["samples"].read_text().splitlines()]
    assert [line["suite"] for line in samples] == ["task", "task", "kept", "kept"]
    assert set(samples[0]["replies"]) == {"base", "sft"}
    assert set(json.loads(result.artifacts["receipts"].read_text())) == {"sft"}
    assert result.model == trained
    assert ("kept: base", 5, 5) in context.progress
