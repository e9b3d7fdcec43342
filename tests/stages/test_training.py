"""Steps, order, reproducibility and progress: what every training stage promises."""

import hashlib
import json
import math
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from conf.errors import UserError
from conf.text_rewards import NumericConfig
from conf.training import LoraConfig, ReinforceConfig, SFTConfig, TrainingConfig
from stages import training
from stages.contract import Interrupted, ModelRef
from stages.fold import load_folded
from stages.generate import generate
from stages.order import wrapped_order
from stages.progress_rows import DivergedError
from stages.reinforce import run_reinforce
from stages.sft import run_sft
from stages.training import new_adapter, planned_steps

CONFIG = {"batch_size": 4, "grad_accum": 2, "max_steps": 3, "learning_rate": 1e-2, "sample_max_new_tokens": 4}


@pytest.mark.parametrize(
    ("rows", "epochs", "batch_size", "grad_accum", "max_steps", "steps"),
    [
        (30, 1, 8, 1, None, 4),
        (32, 1, 8, 1, None, 4),
        (30, 2, 4, 2, None, 8),
        (30, 0.1, 8, 1, None, 1),
        (30, 1, 8, 1, 9, 9),
    ],
)
def test_planned_steps(
    rows: int, epochs: float, batch_size: int, grad_accum: int, max_steps: int | None, steps: int
) -> None:
    config = TrainingConfig(epochs=epochs, batch_size=batch_size, grad_accum=grad_accum, max_steps=max_steps)
    assert planned_steps(config, rows) == steps


def test_fewer_rows_than_a_step_takes_is_an_error() -> None:
    with pytest.raises(UserError, match=r"7 training prompts are fewer .* batch_size 4 x grad_accum 2 = 8"):
        planned_steps(TrainingConfig(batch_size=4, grad_accum=2), 7, "prompts")


def test_the_order_wraps_pass_after_pass() -> None:
    order = wrapped_order(10, 25, seed=1)
    assert len(order) == 25
    assert sorted(order[:10]) == sorted(order[10:20]) == list(range(10))
    assert len(set(order[20:])) == 5
    assert order[:10] != order[10:20]
    assert order == wrapped_order(10, 25, seed=1) != wrapped_order(10, 25, seed=2)


@pytest.mark.parametrize("stage", ["sft", "reinforce"])
def test_the_trained_model_makes_room_for_the_folded_one(context: Any, monkeypatch: Any, stage: str) -> None:
    trained: list[weakref.ref[PreTrainedModel]] = []
    alive: list[Any] = []
    train = training._train

    def remember(trainer: Any, *arguments: Any) -> Any:
        trained.append(weakref.ref(trainer.model.get_base_model()))
        return train(trainer, *arguments)

    def look(*_: Any) -> Any:
        alive.append(trained[0]())
        raise Interrupted

    monkeypatch.setattr(training, "_train", remember)
    monkeypatch.setattr(training, "_fold_and_sample", look)
    rewards = {"number": NumericConfig(type="numeric")}
    with pytest.raises(Interrupted):
        if stage == "sft":
            run_sft(SFTConfig(batch_size=2, max_steps=1), context("sft"))
        else:
            settings = ReinforceConfig(batch_size=2, max_steps=1, group_size=2, max_new_tokens=4)
            run_reinforce(settings, context("reinforce", rewards=rewards))
    assert alive == [None]


def test_the_adapter_takes_every_setting() -> None:
    adapter = new_adapter(LoraConfig(r=3, alpha=5, dropout=0.25, target_modules=["q_proj"], rank_stabilised=True))
    assert (adapter.r, adapter.lora_alpha, adapter.lora_dropout, adapter.use_rslora) == (3, 5, 0.25, True)
    assert adapter.target_modules == {"q_proj"}
    assert new_adapter(LoraConfig()).target_modules == "all-linear"


def weights_hash(directory: Path) -> str:
    return hashlib.sha256((directory / "adapter" / "adapter_model.safetensors").read_bytes()).hexdigest()


def test_the_same_seed_gives_the_same_bytes(context: Any) -> None:
    contexts = [context("one"), context("two"), context("other", seed=1)]
    results = []
    for ctx in contexts:
        torch.rand(3)  # whatever was drawn before must not matter
        results.append(run_sft(SFTConfig(**CONFIG, lora=LoraConfig(dropout=0.1)), ctx))
    one, two, other = (weights_hash(ctx.out_dir) for ctx in contexts)
    assert one == two != other
    assert results[0].model.identity == results[1].model.identity
    starts = [result.receipt["initial_adapter"] for result in results if result.receipt]
    assert starts[0] == starts[1] != starts[2]


def test_one_progress_row_per_optimiser_step(context: Any) -> None:
    result = run_sft(SFTConfig(**CONFIG), context("sft"))
    assert [row["step"] for row in context.logged] == [1, 2, 3]
    assert [row["epoch"] for row in context.logged] == pytest.approx([8 / 30, 16 / 30, 24 / 30], abs=1e-6)
    assert [row["learning_rate"] for row in context.logged] == pytest.approx([1e-2, 2e-2 / 3, 1e-2 / 3])
    names = {"step", "epoch", "time", "loss", "learning_rate", "grad_norm"}
    assert all(set(row) == names and all(map(math.isfinite, row.values())) for row in context.logged)
    assert [seen for seen in context.progress if seen[0] == "train"] == [("train", step, 3) for step in range(4)]
    assert result.metrics["loss"] == context.logged[-1]["loss"]


def test_a_loss_that_is_not_finite_stops_and_names_the_step(context: Any) -> None:
    with pytest.raises(DivergedError, match=r"step 2: loss is (nan|inf)"):
        run_sft(SFTConfig(**{**CONFIG, "learning_rate": 1e30}), context("sft"))


def test_the_finish_leaves_adapter_receipt_and_samples_of_the_folded_model(
    context: Any, tiny: ModelRef, tokenizer: Any, hardware: Any
) -> None:
    ctx = context("sft")
    result = run_sft(SFTConfig(**CONFIG, n_samples=2), ctx)
    assert [adapter.path for adapter in result.model.adapters] == [ctx.out_dir / "adapter"]
    assert json.loads((ctx.out_dir / "receipt.json").read_text()) == result.receipt
    samples = [json.loads(line) for line in (ctx.out_dir / "samples.jsonl").read_text().splitlines()]
    assert [(line["prompt"], line["reference"]) for line in samples] == [("6+0", 6), ("6+1", 7)]
    folded: PreTrainedModel = load_folded(result.model, hardware).model
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "6+0"}], add_generation_prompt=True, return_dict=False
    )
    stops = [tokenizer.eos_token_id]
    ((reply,),) = generate(folded, tokenizer, [ids], max_new_tokens=4, stop_ids=stops, seed=0, batch_size=1)
    assert (samples[0]["completion"], samples[0]["truncated"]) == (reply.text, reply.truncated)
