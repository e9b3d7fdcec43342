"""Preference pairs: which replies are chosen, and what the stage leaves for the next one."""

from typing import Any

import pytest

from conf.errors import UserError
from conf.rewards import load_rewards
from conf.training import PairsConfig
from stages.generate import Completion
from stages.pairs import best_and_worst, run_pairs
from stages.rows import Row, read_rows

REWARDS = load_rewards({"length": {"type": "length", "max_chars": 2}, "digit": {"type": "regex", "pattern": "[a-m]"}})
CONFIG = {"samples": 6, "max_new_tokens": 4, "min_gap": 0.2}


def done(text: str) -> Completion:
    return Completion(text, 1, truncated=False)


def cut(text: str) -> Completion:
    return Completion(text, 1, truncated=True)


@pytest.mark.parametrize(
    ("completions", "totals", "min_gap", "expected"),
    [
        ([done("a"), done("b"), done("c")], [0.5, 1.0, 0.0], 0.1, ("b", "c", 1.0)),
        ([done("a"), done("b"), done("c"), done("d")], [1, 1, 0, 0], 0.1, ("a", "c", 1.0)),
        ([cut("a"), done("b"), done("c"), cut("d")], [1, 1, 0, 0], 0.1, ("b", "d", 1.0)),
        ([done("a"), done("b")], [-1.0, -1.5], 0.5, ("a", "b", 0.5)),
        ([done("a"), done("b")], [0.3, 0.25], 0.1, None),
        ([done("a"), done("b")], [1.0, 1.0], 0.1, None),
    ],
)
def test_best_and_worst(
    completions: list[Completion], totals: list[float], min_gap: float, expected: tuple[str, str, float] | None
) -> None:
    pair = best_and_worst(Row(prompt="p", reference=1), completions, totals, min_gap)
    assert (pair and (pair.row.chosen, pair.row.rejected, pair.gap)) == expected


def test_pairs_keep_the_row_and_held_out_rows_go_along(context: Any, rows: list[Row], tiny: Any) -> None:
    ctx = context("pairs", rewards=REWARDS)
    result = run_pairs(PairsConfig(**CONFIG, max_prompts=12), ctx)
    pairs = read_rows(result.artifacts["train"])
    originals = {row.prompt: row for row in rows[:12]}
    assert 0 < len(pairs) <= 12
    for pair in pairs:
        assert pair.chosen != pair.rejected
        original = originals[pair.prompt]
        assert (pair.system, pair.reference, pair.row) == (original.system, original.reference, original.row)
    for name in ("select", "gate"):
        assert result.artifacts[name] != ctx.data[name]
        assert result.artifacts[name].read_bytes() == ctx.data[name].read_bytes()
    assert result.model == tiny
    assert result.metrics["prompts"] == 12
    assert result.metrics["no_pair"] == pytest.approx(1 - len(pairs) / 12)
    assert result.metrics["mean_gap"] >= CONFIG["min_gap"]
    assert context.progress[-1] == ("sample", 12, 12)


def test_the_same_seed_gives_the_same_pairs(context: Any) -> None:
    texts = [
        run_pairs(PairsConfig(**CONFIG, max_prompts=6), context(f"pairs{number}", rewards=REWARDS, seed=seed))
        .artifacts["train"]
        .read_text()
        for number, seed in enumerate((1, 1, 2))
    ]
    assert texts[0] == texts[1] != texts[2]


def test_failures_are_counted_per_reward(context: Any) -> None:
    tolerant = load_rewards({"sum": {"type": "fields", "column": "none", "on_error": "score", "error_value": 0}})
    result = run_pairs(PairsConfig(**CONFIG, max_prompts=3), context("pairs", rewards={**REWARDS, **tolerant}))
    assert (result.metrics["failed_scores"], result.metrics["failed_sum"]) == (18, 18)
    assert "failed_length" not in result.metrics


def test_no_pair_at_all_is_a_clear_error(context: Any) -> None:
    always = load_rewards({"any": {"type": "regex", "pattern": ".*"}})
    with pytest.raises(UserError, match=r"none of 3 prompts gave a pair: .* 6 totals differ by less than min_gap 0.2"):
        run_pairs(PairsConfig(**CONFIG, max_prompts=3), context("pairs", rewards=always))
