"""What `reinforce` promises as a stage: batches, progress, learning, errors, and the same bytes twice."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError, UserError
from conf.rewards import load_rewards
from conf.schema import ModelConfig
from conf.training import LoraConfig, ReinforceConfig
from rewards.contract import RewardError
from rewards.scoring import Score
from stages.contract import Hardware, ModelRef, StageContext
from stages.generate import Completion
from stages.reinforce import run_reinforce, summary
from stages.rows import Row, write_rows

LOWER_CASE = {"lower": {"type": "regex", "pattern": "[a-z]"}}
ROWS = [Row(prompt=f"Say {number}.", reference=number, row={"number": number}) for number in range(7)]

Context = Callable[..., StageContext]


@pytest.fixture
def new_context(tmp_path: Path, tiny: ModelRef, hardware: Hardware) -> Context:
    """Makes a context of its own directory per name; its rows of numbers land in `logged`."""

    def make(name: str, rewards: Any = LOWER_CASE, rows: list[Row] = ROWS, **changes: Any) -> StageContext:
        out_dir = tmp_path / name
        out_dir.mkdir()
        train = write_rows(out_dir / "train.jsonl", rows)
        settings = {"models": {"start": tiny}, "seed": 0, "hardware": hardware, **changes}
        return StageContext(out_dir=out_dir, data={"train": train}, rewards=load_rewards(rewards), **settings)

    return make


def config(**settings: Any) -> ReinforceConfig:
    fast = {"batch_size": 3, "group_size": 4, "max_new_tokens": 4, "max_steps": 2, "learning_rate": 1e-2}
    return ReinforceConfig(**{**fast, **settings})


@pytest.mark.parametrize(
    ("batch_size", "group_size", "grad_accum", "steps"), [(3, 5, 2, 2), (1, 2, 7, 1), (5, 3, 1, 2), (2, 6, 1, 4)]
)
def test_any_combination_of_batch_group_and_accumulation(
    new_context: Context, batch_size: int, group_size: int, grad_accum: int, steps: int
) -> None:
    logged: list[Mapping[str, float]] = []
    cfg = config(batch_size=batch_size, group_size=group_size, grad_accum=grad_accum, max_steps=None)
    result = run_reinforce(cfg, new_context("any", log_metrics=logged.append))
    assert [row["step"] for row in logged] == list(range(1, steps + 1))
    assert logged[-1]["epoch"] == pytest.approx(steps * batch_size * grad_accum / len(ROWS), abs=1e-6)
    assert result.metrics["train_rows"] == len(ROWS)


def test_progress_rows_have_their_columns(new_context: Context) -> None:
    logged: list[Mapping[str, float]] = []
    rewards = {**LOWER_CASE, "short": {"type": "length", "max_chars": 2, "weight": 0.5}}
    run_reinforce(config(), new_context("rows", rewards, log_metrics=logged.append))
    common = {"step", "epoch", "time", "loss", "learning_rate", "grad_norm"}
    ours = {"reward", "reward_std", "kl", "completion_len", "truncated", "all_equal", "failed_scores"}
    ours |= {"resampled", "generated_tokens"}
    for row in logged:
        assert set(row) == common | ours | {"reward_lower", "reward_short"}
        assert row["reward"] == pytest.approx(row["reward_lower"] + 0.5 * row["reward_short"], abs=1e-6)
        assert 0 <= row["truncated"] <= 1 and 0 <= row["all_equal"] <= 1 and 1 <= row["completion_len"] <= 4
        assert row["resampled"] == 0 and row["generated_tokens"] == pytest.approx(12 * row["completion_len"])
    assert logged[0]["kl"] == 0 < logged[1]["kl"]


def test_summary_of_a_step() -> None:
    def score(lower: float, failed: bool = False) -> Score:
        return Score(2 * lower, {"lower": lower}, {"lower": "no"} if failed else {}, {}, {})

    scores = [score(0), score(1), score(0.5), score(1), score(1), score(1, failed=True)]
    completions = [Completion("", tokens, truncated=tokens == 4) for tokens in (1, 2, 3, 4, 4, 1)]
    assert summary(completions, scores, group_size=3) == {
        "reward": 1.5,
        "reward_std": 0.5,  # of 0, 2, 1 with n - 1: 1; of 2, 2, 2: 0
        "completion_len": 2.5,
        "truncated": pytest.approx(1 / 3),
        "all_equal": 0.5,
        "failed_scores": 1.0,
        "reward_lower": 0.75,
    }


def test_the_reward_rises(new_context: Context) -> None:
    logged: list[Mapping[str, float]] = []
    cfg = config(batch_size=4, group_size=8, max_steps=25, beta=0.0)
    run_reinforce(cfg, new_context("learn", log_metrics=logged.append))
    rewards = [row["reward"] for row in logged]
    assert sum(rewards[:3]) / 3 < 0.6 and sum(rewards[-3:]) / 3 > 0.9


def test_the_same_seed_gives_the_same_bytes(new_context: Context) -> None:
    cfg = config(grad_accum=2, lora=LoraConfig(dropout=0.1))
    contexts = [new_context("one"), new_context("two"), new_context("other", seed=1)]
    one, two, other = (run_reinforce(cfg, ctx) for ctx in contexts)
    weights = [(ctx.out_dir / "adapter" / "adapter_model.safetensors").read_bytes() for ctx in contexts]
    assert weights[0] == weights[1] != weights[2]
    assert one.model.identity == two.model.identity != other.model.identity


def test_the_adapter_follows_the_one_it_started_from(new_context: Context) -> None:
    first = run_reinforce(config(), new_context("first")).model
    second = run_reinforce(config(), new_context("second", models={"start": first})).model
    assert second.adapters[0] == first.adapters[0] and len(second.adapters) == 2


def test_rows_keep_their_types_on_the_way_to_the_rewards(new_context: Context, tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(
        "def reward(prompt, completion, reference, row):\n"
        "    assert prompt == f'Say {reference}.' and row == {'number': reference, 'more': [1, {'a': None}]}\n"
        "    assert type(reference) is int\n"
        "    return any(letter.islower() for letter in completion)\n"
    )
    rows = [Row(prompt=row.prompt, reference=row.reference, row={**row.row, "more": [1, {"a": None}]}) for row in ROWS]
    rewards = {"typed": {"type": "custom", "path": str(tmp_path / "typed.py")}}
    run_reinforce(config(), new_context("types", rewards, rows))  # a failed assertion would stop it


def test_a_failing_reward_stops_with_its_name_the_row_and_the_reason(new_context: Context) -> None:
    rows = [*ROWS[:2], Row(prompt="Say what?"), *ROWS[3:]]
    with pytest.raises(
        RewardError,
        match=r"^step 2: training row 3: reward 'sum' failed: the reference is missing.*; there is no checkpoint yet$",
    ):
        run_reinforce(config(max_steps=3), new_context("fails", {"sum": {"type": "numeric"}}, rows))


def test_a_failing_reward_with_a_value_for_failures_is_counted(new_context: Context) -> None:
    logged: list[Mapping[str, float]] = []
    rewards = {**LOWER_CASE, "sum": {"type": "numeric", "on_error": "score", "error_value": -1.0}}
    rows = [Row(prompt=f"Say {letter}") for letter in "abc"]
    run_reinforce(config(max_steps=1), new_context("counted", rewards, rows, log_metrics=logged.append))
    assert [logged[0][name] for name in ("failed_scores", "failed_sum", "reward_sum")] == [12, 12, -1]


def test_fewer_prompts_than_a_step_takes_is_an_error(new_context: Context) -> None:
    with pytest.raises(UserError, match="7 training prompts are fewer than one optimiser step takes"):
        run_reinforce(config(batch_size=4, grad_accum=2), new_context("few"))


@pytest.mark.parametrize(
    ("field", "ours"),
    [("num_generations", "group_size"), ("max_completion_length", "max_new_tokens"), ("temperature", "temperature")],
)
def test_fields_of_trl_that_ratchet_owns_are_refused(new_context: Context, field: str, ours: str) -> None:
    with pytest.raises(ConfigError, match=rf"reinforce\.trainer\.{field}: .*use reinforce\.{ours}"):
        run_reinforce(config(trainer={field: 4}), new_context("owned"))


def test_further_fields_of_trl_are_taken(new_context: Context) -> None:
    result = run_reinforce(config(trainer={"adam_beta2": 0.9}), new_context("further"))
    assert math.isfinite(result.metrics["loss"])


def test_custom_stop_tokens_end_a_completion(new_context: Context, tiny: ModelRef) -> None:
    stops = [chr(code) for code in range(ord("!"), ord("~"))]  # most of what a byte can be
    start = ModelRef(config=ModelConfig(id="tiny:random", stop_tokens=stops), sha256=tiny.sha256)
    logged: list[Mapping[str, float]] = []
    rewards = {"clean": {"type": "regex", "pattern": r"\A[^!-}]*\Z"}, "empty": {"type": "regex", "pattern": r"\A\Z"}}
    ctx = new_context("stops", rewards, models={"start": start}, log_metrics=logged.append)
    run_reinforce(config(max_new_tokens=30, max_steps=1), ctx)
    assert logged[0]["reward_clean"] == 1, "the stop token is no part of what the rewards see"
    assert logged[0]["truncated"] < 0.1 and logged[0]["completion_len"] < 8
