"""Which prompts `reinforce` trains on: those of the asked difficulty, and fresh ones for groups without variance."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError, UserError
from conf.rewards import load_rewards
from conf.training import DifficultyConfig, ReinforceConfig
from rewards.scoring import RewardSet
from stages.contract import Hardware, ModelRef, StageContext
from stages.grpo import OnPolicyTrainer, Resampling
from stages.models import load_tokenizer
from stages.order import fresh_rows, wrapped_order
from stages.reinforce import reinforce_trainer, run_reinforce
from stages.rows import Row, write_rows

KINDS = ("never", "sometimes", "always")
ROWS = [Row(prompt=f"Say {number}.", row={"kind": KINDS[number % 3]}) for number in range(18)]
REWARD = """
def reward(completion, row):
    lower = any(letter.islower() for letter in completion)
    return {"never": 0, "sometimes": lower, "always": 1}[row["kind"]]
"""
FAST = {"batch_size": 3, "group_size": 4, "max_new_tokens": 3, "max_steps": 2, "learning_rate": 1e-2, "n_samples": 0}
BAND = DifficultyConfig(min_success=0.05, max_success=0.95, samples=6, success_at=1.0, batch_size=6)

Context = Callable[..., StageContext]


@pytest.fixture
def new_context(tmp_path: Path, tiny: ModelRef, hardware: Hardware) -> Context:
    """Makes a context of its own directory per name, with prompts that are never, sometimes or always solved."""
    (tmp_path / "reward.py").write_text(REWARD)
    rewards = load_rewards({"kind": {"type": "custom", "path": str(tmp_path / "reward.py")}})

    def make(name: str, rows: list[Row] = ROWS, **changes: Any) -> StageContext:
        out_dir = tmp_path / name
        out_dir.mkdir()
        data = {"train": write_rows(out_dir / "train.jsonl", rows)}
        values = {"models": {"start": tiny}, "seed": 0, "hardware": hardware, "rewards": rewards, **changes}
        return StageContext(out_dir=out_dir, data=data, **values)

    return make


def make_trainer(ctx: StageContext, start: ModelRef, pool: list[int] | None = None, **changes: Any) -> OnPolicyTrainer:
    with RewardSet(ctx.rewards) as rewards:
        return reinforce_trainer(ReinforceConfig(**FAST, **changes), ctx, load_tokenizer(start), ROWS, rewards, pool)


def measured(ctx: StageContext) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ctx.out_dir / "difficulty.jsonl").read_text().splitlines()]


def test_only_prompts_in_the_band_are_trained_on(new_context: Context) -> None:
    logged: list[Mapping[str, float]] = []
    ctx = new_context("band", log_metrics=logged.append)
    result = run_reinforce(ReinforceConfig(**FAST, difficulty=BAND), ctx)
    lines = measured(ctx)
    order = wrapped_order(len(ROWS), len(ROWS), ctx.seed)
    assert [line["row"] - 1 for line in lines] == order[: len(lines)], "in the training order"
    kept = [line["row"] - 1 for line in lines if line["kept"]]
    assert {ROWS[index].row["kind"] for index in kept} == {"sometimes"}
    assert {line["success_rate"] for line in lines if not line["kept"]} <= {0.0, 1.0}
    counts = {name: result.metrics[f"difficulty_{name}"] for name in ("measured", "kept")}
    assert counts == {"measured": len(lines), "kept": len(kept)} and result.metrics["train_rows"] == len(kept)
    assert 6 * len(lines) <= result.metrics["difficulty_tokens"] <= 18 * len(lines)
    assert result.artifacts["difficulty"].is_file()
    # The three kinds in equal parts would give two of three groups without variance.
    assert sum(row["all_equal"] for row in logged) / len(logged) < 0.5


def test_measuring_ends_when_there_are_enough(new_context: Context) -> None:
    ctx = new_context("enough")
    result = run_reinforce(ReinforceConfig(**{**FAST, "batch_size": 1, "max_steps": 1}, difficulty=BAND), ctx)
    assert 1 <= result.metrics["difficulty_kept"] < 6 and result.metrics["difficulty_measured"] in (6, 12)


def test_too_few_prompts_in_the_band_is_an_error_that_counts(new_context: Context) -> None:
    rows = [row for row in ROWS if row.row["kind"] != "sometimes"]
    with pytest.raises(
        UserError, match=r"0 of 12 training prompts .* \(6 below, 6 above\), and an optimiser step takes 3"
    ):
        run_reinforce(ReinforceConfig(**FAST, difficulty=BAND), new_context("few", rows))


def test_difficulty_needs_to_know_what_a_success_is(new_context: Context) -> None:
    band = DifficultyConfig(min_success=0.1, samples=2)
    with pytest.raises(ConfigError, match=r"row \d+ has no reference.* give reinforce.difficulty.success_at"):
        run_reinforce(ReinforceConfig(**FAST, difficulty=band), new_context("what"))


def test_the_pool_limits_the_order_and_rows_keep_their_numbers(new_context: Context, tiny: ModelRef) -> None:
    trainer = make_trainer(new_context("pool"), tiny, [4, 7, 16])
    order = list(trainer.train_dataset["prompt"])
    assert sorted(order[:3]) == sorted(order[3:]) == [4, 7, 16]


def test_fresh_rows_are_a_function_of_seed_step_and_attempt() -> None:
    pool, batch = range(40), [3, 9, 27, 1]
    attempts = [fresh_rows(pool, batch, 5, 2, attempt) for attempt in range(9)]
    assert attempts == [fresh_rows(pool, batch, 5, 2, attempt) for attempt in range(9)]
    flat = [row for rows in attempts for row in rows]
    assert sorted([*flat, *batch]) == list(pool), "none of the batch, and none twice"
    assert fresh_rows(pool, batch, 5, 2, 9) == []
    assert len({tuple(fresh_rows(pool, batch, seed, step, 0)) for seed in (5, 6) for step in (2, 3)}) == 4
    assert fresh_rows([3, 9, 27, 1, 8], batch, 5, 2, 0) == [8]


@pytest.mark.parametrize("shared", [True, False])
def test_groups_without_variance_give_way(new_context: Context, tiny: ModelRef, shared: bool) -> None:
    trainer = make_trainer(new_context("way"), tiny, shared_prefix=shared)
    lengths: dict[int, int] = {}

    def totals(prompts: list[int], completions: list[list[int]]) -> list[float]:
        for start in range(0, len(prompts), 4):
            lengths[prompts[start]] = sum(map(len, completions[start : start + 4]))
        return [float(place % 4 == 1 and prompt % 2 == 0) for place, prompt in enumerate(prompts)]

    trainer.resampling = Resampling(attempts=6, pool=range(18), totals=totals)
    expected, replaced = [1, 4, 7], 0
    for attempt in range(6):
        odd = [place for place, row in enumerate(expected) if row % 2]
        for place, row in zip(odd, fresh_rows(range(18), [1, 4, 7], 0, 0, attempt), strict=False):
            expected[place] = row
        replaced += len(odd)
    batch = trainer._generate_and_score_completions([{"prompt": row} for row in (1, 4, 7) for _ in range(4)])
    fed = [ids[mask.bool()].tolist() for ids, mask in zip(batch["prompt_ids"], batch["prompt_mask"], strict=True)]
    assert fed == [trainer.prompt_ids[row] for row in expected for _ in range(4)]
    assert not any(row % 2 for row in expected) and expected[1] == 4
    assert trainer._metrics["train"]["groups/resampled"] == [replaced]
    assert len(lengths) == 3 + replaced, "every row is asked once"
    assert trainer._metrics["train"]["groups/generated_tokens"] == [sum(lengths.values())]
    assert batch["completion_mask"].sum().item() == sum(lengths[row] for row in expected)


def test_resampling_is_counted_reproducible_and_leaves_fewer_equal_groups(new_context: Context) -> None:
    rows: dict[str, list[Mapping[str, float]]] = {"none": [], "one": [], "two": []}
    weights = {}
    for name, logged in rows.items():
        ctx = new_context(name, log_metrics=logged.append)
        run_reinforce(ReinforceConfig(**{**FAST, "max_steps": 4}, resample=0 if name == "none" else 3), ctx)
        weights[name] = (ctx.out_dir / "adapter" / "adapter_model.safetensors").read_bytes()
    assert weights["one"] == weights["two"] != weights["none"]
    none, one = rows["none"], rows["one"]
    assert [row["resampled"] for row in none] == [0] * 4 and sum(row["resampled"] for row in one) > 4
    assert sum(row["all_equal"] for row in one) < sum(row["all_equal"] for row in none) / 2
    for row in one:
        sampled = (3 + row["resampled"]) * 4  # completions of 1 to 3 tokens
        assert sampled <= row["generated_tokens"] <= 3 * sampled
        assert row["generated_tokens"] >= 12 * row["completion_len"]
