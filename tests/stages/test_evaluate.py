"""Evaluation: which models are compared under which names, and how scores become numbers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.rewards import load_rewards
from conf.schema import SuiteRole
from conf.sections import EvaluateConfig, SFTConfig
from rewards.scoring import RewardSet
from stages.contract import Adapter, ModelRef, Suite
from stages.evaluate import models_to_compare, run_evaluate, summary
from stages.rows import Row, read_rows, write_rows
from stages.sft import run_sft

REWARDS = load_rewards({"exact": {"type": "exact"}})
TOLERANT = load_rewards({"form": {"type": "fields", "column": "none", "on_error": "score", "error_value": 0}})


def adapter(name: str) -> Adapter:
    return Adapter(path=Path(name), sha256=name)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"start": "ab", "baseline": "", "chain.sft": "a", "chain.dpo": "ab"}, {"base": "", "sft": "a", "dpo": "ab"}),
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


def test_mean_and_standard_error() -> None:
    scores = {"sft": [1.0, 0.0, 1.0, 1.0], "base": [0.5]}
    metrics = summary(
        [{"suite": "task", "model": model, "score": score} for model, values in scores.items() for score in values]
    )
    # sd of (1, 0, 1, 1) with n - 1 is 0.5, over the root of 4 rows
    assert metrics == {"task.sft": 0.75, "task.sft.stderr": 0.25, "task.base": 0.5}


def test_all_models_answer_the_same_rows(context: Any, tiny: ModelRef) -> None:
    lesson = [Row(prompt=f"{index}?", response="7", reference=str(7 + index % 2)) for index in range(8)]
    data = {**context.defaults["data"], "train": write_rows(context.folder / "lesson.jsonl", lesson)}
    cfg = SFTConfig(batch_size=8, max_steps=20, learning_rate=2e-2, n_samples=0)
    trained = run_sft(cfg, context("sft", data=data)).model
    suites = {
        "task": Suite(role=SuiteRole.task, rows=data["train"], rewards=REWARDS, max_new_tokens=4),
        "kept": Suite(role=SuiteRole.general, rows=data["gate"], rewards={**REWARDS, **TOLERANT}, max_new_tokens=4),
    }
    models = {"start": trained, "baseline": tiny, "chain.sft": trained}
    result = run_evaluate(EvaluateConfig(n_samples=2), context("evaluate", models=models, suites=suites))

    records = [json.loads(line) for line in result.artifacts["scores"].read_text().splitlines()]
    assert [(r["suite"], r["model"], r["row"]) for r in records] == [
        (suite, model, row) for model in ("base", "sft") for suite, n in (("task", 8), ("kept", 5)) for row in range(n)
    ]
    assert (result.metrics["failed_scores"], result.metrics["failed_form"]) == (10, 10)  # 5 rows, two models
    rewards = RewardSet(REWARDS)
    rows = {"task": read_rows(data["train"])[:8], "kept": read_rows(data["gate"])}
    for record in records:
        row = rows[record["suite"]][record["row"]]
        score = rewards.score(row.prompt_text, record["completion"], row.reference, row.row).total
        assert record["score"] == score
    values = [record["score"] for record in records if (record["suite"], record["model"]) == ("task", "sft")]
    assert result.metrics["task.sft"] == sum(values) / 8
    assert (result.metrics["task.base"], result.metrics["task.sft"]) == (0.0, 0.5)  # says 7, and every other is 7
    assert (result.metrics["rows.task"], result.metrics["rows.kept"]) == (8, 5)
    samples = [json.loads(line) for line in result.artifacts["samples"].read_text().splitlines()]
    assert [line["suite"] for line in samples] == ["task", "task", "kept", "kept"]
    assert set(samples[0]["replies"]) == {"base", "sft"}
    assert set(json.loads(result.artifacts["receipts"].read_text())) == {"sft"}
    assert result.model == trained
    assert ("kept: base", 5, 5) in context.progress
