"""A stage that was interrupted goes on from its last checkpoint, and ends as if nothing had happened."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.errors import ConfigError, UserError
from conf.loader import load
from conf.rewards import load_rewards
from conf.training import Keep, LoraConfig, PreferenceConfig, PreferenceMethod, ReinforceConfig, SFTConfig
from stages.checkpoints import read_checkpoint
from stages.contract import Interrupted, ModelRef, StageContext, StageResult
from stages.hardware import prepare
from stages.order import wrapped_order
from stages.preference import run_preference
from stages.progress_rows import DivergedError, finite
from stages.reinforce import run_reinforce
from stages.rows import Row, write_rows
from stages.sft import run_sft

STEPS = 5
SHARED: dict[str, Any] = {
    "batch_size": 2,
    "grad_accum": 2,
    "max_steps": STEPS,
    "save_steps": 2,
    "learning_rate": 1e-2,
    "n_samples": 1,
    "sample_max_new_tokens": 2,
    "lora": LoraConfig(r=4, dropout=0.1),
}
PAIRS = [Row(prompt=f"{a}+{a}", chosen=str(2 * a), rejected="no " * (1 + a % 3)) for a in range(12)]
LOWER_CASE = load_rewards({"lower": {"type": "regex", "pattern": "[a-z]"}})

Run = Callable[[StageContext], StageResult]


@pytest.fixture(params=["sft", "dpo", "orpo", "reinforce", "plain reinforce"])
def stage(request: pytest.FixtureRequest, data: Mapping[str, Path], tmp_path: Path) -> tuple[Run, dict[str, Any]]:
    """A training stage with its settings, and what its context has besides."""
    name = request.param
    pairs = {split: write_rows(tmp_path / f"pairs-{split}.jsonl", PAIRS) for split in ("train", "select")}
    if name == "sft":
        return lambda ctx: run_sft(SFTConfig(**SHARED), ctx), {"data": data}
    if name.endswith("reinforce"):
        cfg = ReinforceConfig(**SHARED, group_size=3, max_new_tokens=3, resample=1, shared_prefix=name == "reinforce")
        return lambda ctx: run_reinforce(cfg, ctx), {"data": data, "rewards": LOWER_CASE}
    preference = PreferenceConfig(**SHARED, method=PreferenceMethod[name])
    return lambda ctx: run_preference(preference, ctx), {"data": pairs}


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


def interrupted(ctx: StageContext, step: int, *, kill: bool) -> StageContext:
    """The context of an attempt that is killed while it tells of a step, or asked to end after it."""
    seen: list[int] = []

    def log(row: Mapping[str, float]) -> None:
        if kill and row["step"] == step:
            raise Killed
        seen.append(round(row["step"]))
        ctx.log_metrics(row)

    return replace(ctx, log_metrics=log, stopping=lambda: step - 1 in seen)


def without_time(rows: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def test_a_killed_stage_ends_with_the_same_bytes_and_rows(stage: tuple[Run, dict[str, Any]], context: Any) -> None:
    """Killed two steps after its only checkpoint, which is that of step 2."""
    run, inputs = stage
    whole = context("whole", **inputs)
    expected = run(whole)
    rows = without_time(context.logged)
    context.logged.clear()
    ctx = context("parts", **inputs)
    with pytest.raises(Killed):
        run(interrupted(ctx, 4, kill=True))
    torch.rand(7)  # whatever happens in between must not matter
    result = run(ctx)
    assert [row["step"] for row in context.logged] == [1, 2, 3, 3, 4, 5]
    assert without_time(context.logged) == [rows[round(row["step"]) - 1] for row in context.logged]
    assert result.model.adapters[0].sha256 == expected.model.adapters[0].sha256
    assert result.metrics == expected.metrics
    assert result.receipt == expected.receipt
    times = [row["time"] for row in context.logged[-2:]]
    assert times == sorted(times)


def test_a_stage_that_is_asked_to_end_saves_first(context: Any, whole: str) -> None:
    ctx = context("parts")
    with pytest.raises(Interrupted, match="after step 3 of 5"):
        run_sft(sft_config(save_steps=10), interrupted(ctx, 3, kill=False))
    assert names(ctx) == ["step-00000003"]
    result = run_sft(sft_config(save_steps=10), ctx)
    assert [row["step"] for row in context.logged][-5:] == [1, 2, 3, 4, 5]
    assert result.model.adapters[0].sha256 == whole


def test_a_stage_that_is_killed_before_its_first_checkpoint_begins_again(context: Any, whole: str) -> None:
    ctx = context("parts")
    with pytest.raises(Killed):
        run_sft(sft_config(), interrupted(ctx, 1, kill=True))
    assert run_sft(sft_config(), ctx).model.adapters[0].sha256 == whole


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny: ModelRef, data: Mapping[str, Path], hardware: Any) -> str:
    """The adapter of an sft stage that nothing interrupted."""
    prepare(hardware, 0)
    models, out_dir = {"start": tiny}, tmp_path_factory.mktemp("whole")
    ctx = StageContext(models=models, out_dir=out_dir, seed=0, hardware=hardware, data=data)
    return run_sft(sft_config(), ctx).model.adapters[0].sha256


def sft_config(**changes: Any) -> SFTConfig:
    return SFTConfig(**{**SHARED, "save_steps": 1, **changes})


def stopped_after(context: Any, step: int, **changes: Any) -> StageContext:
    """The context of an sft stage with one checkpoint per step, interrupted after a step."""
    ctx: StageContext = context("stopped")
    with pytest.raises(Interrupted):
        run_sft(sft_config(**changes), interrupted(ctx, step, kill=False))
    return ctx


def names(ctx: StageContext) -> list[str]:
    return sorted(path.name for path in (ctx.out_dir / "checkpoints").iterdir())


def test_only_the_newest_checkpoints_stay(context: Any) -> None:
    assert names(stopped_after(context, 4, keep_checkpoints=2)) == ["step-00000003", "step-00000004"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "optimizer.pt").write_bytes((path / "optimizer.pt").read_bytes()[:-9]),
        lambda path: (path / "checkpoint.json").write_text("{"),
        shutil.rmtree,
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_a_message(
    context: Any, whole: str, damage: Callable[[Path], object]
) -> None:
    ctx = stopped_after(context, 4)
    newest = ctx.out_dir / "checkpoints" / "step-00000004"
    damage(newest)
    there = newest.exists()
    said: list[str] = []
    result = run_sft(sft_config(), replace(ctx, say=said.append))
    assert any(f"{newest} is damaged" in line for line in said) == there
    assert any("goes on after step 3 of 5" in line for line in said)
    assert result.model.adapters[0].sha256 == whole


def test_an_attempt_that_dies_after_training_does_not_train_again(context: Any) -> None:
    ctx = context("sft")

    def die_at_samples(what: str, done: int, total: int) -> None:
        if what == "samples":
            raise Killed

    with pytest.raises(Killed):
        run_sft(sft_config(), replace(ctx, progress=die_at_samples))
    context.logged.clear()
    result = run_sft(sft_config(), ctx)
    assert context.logged == []
    whole = run_sft(sft_config(), context("whole"))
    assert result.model.adapters[0].sha256 == whole.model.adapters[0].sha256
    assert result.metrics == whole.metrics


@pytest.mark.parametrize("kind", ["sft", "dpo", "orpo", "reinforce"])
def test_looking_at_held_out_rows_changes_nothing(
    kind: str, context: Any, data: Mapping[str, Path], tmp_path: Path
) -> None:
    pairs = {split: write_rows(tmp_path / f"pairs-{split}.jsonl", PAIRS) for split in ("train", "select")}

    def run(name: str, **changes: Any) -> StageResult:
        settings = {**SHARED, **changes}
        if kind == "sft":
            return run_sft(SFTConfig(**settings), context(name))
        if kind == "reinforce":
            cfg = ReinforceConfig(**settings, group_size=3, max_new_tokens=3)
            return run_reinforce(cfg, context(name, rewards=LOWER_CASE))
        return run_preference(PreferenceConfig(**settings, method=PreferenceMethod[kind]), context(name, data=pairs))

    plain = run("plain")
    context.logged.clear()
    looked = run("looked", eval_steps=2)
    column = "eval_reward" if kind == "reinforce" else "eval_loss"
    assert [row["step"] for row in context.logged if column in row] == [2, 4, 5]
    assert looked.model.adapters[0].sha256 == plain.model.adapters[0].sha256


def test_the_best_adapter_is_kept_over_an_interruption(context: Any) -> None:
    """With a learning rate that soon does harm, the best step is not the last one."""
    harmful = {"eval_steps": 1, "learning_rate": 0.3}
    last = run_sft(sft_config(**harmful), context("last"))
    losses = [row["eval_loss"] for row in context.logged]
    best = losses.index(min(losses)) + 1
    assert best < STEPS
    whole = run_sft(sft_config(**harmful, keep=Keep.best), context("best"))
    assert whole.metrics["best_step"] == best
    assert whole.metrics["best_value"] == min(losses)
    assert whole.model.adapters[0].sha256 != last.model.adapters[0].sha256
    ctx = stopped_after(context, best + 1, **harmful, keep=Keep.best)
    result = run_sft(sft_config(**harmful, keep=Keep.best), ctx)
    assert result.model.adapters[0].sha256 == whole.model.adapters[0].sha256


def test_best_needs_to_know_when_to_look() -> None:
    with pytest.raises(ConfigError, match=r"eval_steps: keep: best needs to know how often"):
        load(SFTConfig, {"keep": "best"}, "sft")


def test_no_held_out_rows_to_look_at_is_a_clear_error(context: Any, data: Mapping[str, Path]) -> None:
    with pytest.raises(UserError, match="eval_steps: there are no held-out rows"):
        run_sft(sft_config(eval_steps=1), context("sft", data={"train": data["train"]}))


def test_divergence_names_rows_and_the_last_good_checkpoint(context: Any) -> None:
    ctx = context("sft")
    with pytest.raises(DivergedError) as caught:
        run_sft(sft_config(learning_rate=1e30), ctx)
    message = str(caught.value)
    assert message.startswith("step 2: ")
    order = wrapped_order(30, STEPS * 4, seed=0)
    assert f"(training rows {', '.join(str(place + 1) for place in order[4:8])})" in message
    good = ctx.out_dir / "checkpoints" / "step-00000001"
    assert f"the last good checkpoint is {good}" in message
    assert read_checkpoint(good) is not None
    assert not (ctx.out_dir / "adapter").exists()


def test_a_weight_that_is_not_finite_is_seen() -> None:
    layer = torch.nn.Linear(2, 2)
    assert finite(layer)
    layer.weight.data[0, 1] = torch.nan
    assert not finite(layer)
    layer.requires_grad_(False)
    layer.bias.requires_grad_(True)
    assert finite(layer)
