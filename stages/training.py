"""What all training stages share: how many steps, in which order, the new adapter, progress, and the finish.

A training stage tokenises its rows, builds a TRL trainer from `trl_arguments` and `new_adapter`, and hands it to
`train_and_fold`. The adapter is made by the trainer right after seeding, so equal seeds give equal adapters.
"""

import gc
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import peft
import torch
from transformers import PreTrainedTokenizerBase, Trainer
from transformers.trainer_callback import PrinterCallback

from conf.training import LoraConfig, TrainingConfig
from rewards.contract import RewardError
from stages import ranks
from stages.adapters import save_adapter
from stages.checkpoints import Checkpoints, SaveCheckpoints
from stages.contract import Interrupted, ModelRef, StageContext, StageResult
from stages.fold import load_folded
from stages.held_out import HeldOut, Measure
from stages.models import evaluating
from stages.order import require_step, wrapped_order
from stages.packed import pack
from stages.progress_rows import ProgressRows
from stages.quantise import quantisation_gap
from stages.receipt import probe_ids, probe_logits
from stages.rows import read_rows
from stages.samples import answer, sample, write_json_lines
from stages.sharding import whole_weights
from stages.vllm import StaleSamplerError

SAMPLE_BATCH = 16
"""Prompts answered at once for samples.jsonl."""


def planned_steps(config: TrainingConfig, rows: int, what: str = "rows") -> int:
    """Optimiser steps: `max_steps`, or as many as `epochs` passes over the rows need, the last one wrapped.

    Raises:
        UserError: There are fewer rows than one step takes.
    """
    per_step = require_step(config, rows, what)
    return config.max_steps or math.ceil(rows * config.epochs / per_step)


def new_adapter(lora: LoraConfig) -> peft.LoraConfig:
    """The peft configuration of a stage's adapter."""
    every_linear_layer = lora.target_modules == ["all-linear"]
    return peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear" if every_linear_layer else list(lora.target_modules),
        use_rslora=lora.rank_stabilised,
        bias="none",
    )


def train_and_fold(
    trainer: Trainer,
    tokenizer: PreTrainedTokenizerBase,
    config: TrainingConfig,
    ctx: StageContext,
    *,
    numbers: Sequence[int],
    measure: Measure,
    lower_is_better: bool = True,
    columns: Mapping[str, str] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> StageResult:
    """Train (on from the last checkpoint, if there is one), keep the adapter, fold it from disk, answer held-out rows.

    Of processes that train together, rank 0 does what comes after training; what the others return is of no use.

    Args:
        trainer: A TRL trainer around a fresh adapter.
        tokenizer: The model's.
        config: The stage's section.
        ctx: The stage's context.
        numbers: Numbers of the training rows (or prompts) that one pass has, in the order that `wrapped_order` takes.
        measure: Held-out numbers of the model in training; the first one decides what is best.
        lower_is_better: Whether that is a loss.
        columns: TRL's names of further progress columns, and ours.
        metrics: What the stage itself counted.

    Raises:
        DivergedError: A loss, gradient or weight is not finite.
        RewardError: A reward failed; names the step, the row and the reason.
        StaleSamplerError: Completions come from another model than the one in training; names the step.
        Interrupted: The stage was asked to end early; a checkpoint has where it stands.
    """
    initial = adapter_hash(trainer.model)
    held_out = HeldOut(config, trainer.model, measure, lower_is_better=lower_is_better)
    rows = _train(trainer, config, ctx, numbers, held_out, columns or {})
    held_out.put_back()
    weights = whole_weights(trainer)
    first = ranks.is_first()
    ranks.leave()
    if not first:
        return StageResult(model=ctx.start)
    model = ctx.start.with_adapter(save_adapter(trainer.model, ctx.start, ctx.out_dir / "adapter", weights))
    trained = _trained_logits(trainer.model, ctx)
    _release(trainer)
    receipt = _fold_and_sample(model, tokenizer, config, ctx, initial, trained)
    last: dict[str, float] = {name: rows.last[name] for name in ("loss", "step") if name in rows.last}
    best = {f"best_{name}": value for name, value in (held_out.best or {}).items()}
    return StageResult(
        model=model,
        metrics={**last, **best, "train_rows": float(len(numbers)), **(metrics or {})},
        artifacts={"samples": ctx.out_dir / "samples.jsonl"},
        receipt=receipt,
    )


def _train(
    trainer: Trainer,
    config: TrainingConfig,
    ctx: StageContext,
    numbers: Sequence[int],
    held_out: HeldOut,
    columns: Mapping[str, str],
) -> ProgressRows:
    """Train to the end, or as far as the stage may go; every step leaves a row."""
    per_step, steps = config.batch_size * config.grad_accum, trainer.args.max_steps
    order = wrapped_order(len(numbers), steps * per_step, ctx.seed)

    def batch(step: int) -> list[int]:
        return [numbers[place] for place in order[(step - 1) * per_step : step * per_step]]

    rows = ProgressRows(ctx, columns, per_step / len(numbers), batch, held_out)
    checkpoints = Checkpoints(ctx.out_dir, config.keep_checkpoints)
    checkpoint = ranks.of_first(lambda: checkpoints.newest(ctx.say))
    if checkpoint is not None:
        ctx.say(f"goes on after step {checkpoint.step} of {steps}, from {checkpoint.path.name}")
        rows.restore(checkpoint.row, checkpoint.path)
        held_out.restore(checkpoint.path, checkpoint.best)
    for callback in (held_out, rows, SaveCheckpoints(ctx, checkpoints, rows, held_out)):
        trainer.add_callback(callback)
    trainer.remove_callback(PrinterCallback)
    ranks.seed_apart(ctx.seed)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
    except (RewardError, StaleSamplerError) as error:
        raise type(error)(f"step {trainer.state.global_step + 1}: {error}; {rows.left()}") from error
    finally:
        if ranks.is_first():
            checkpoints.discard_draft()
    if trainer.state.global_step < steps:
        raise Interrupted(f"after step {trainer.state.global_step} of {steps}")
    return rows


def _trained_logits(model: torch.nn.Module, ctx: StageContext) -> torch.Tensor | None:
    """Logits of the probe prompt, where the fold will not be of the weights that were trained on."""
    if not ctx.hardware.load_in_4bit:
        return None
    with evaluating(model):
        return probe_logits(model, probe_ids(ctx.start))


def _release(trainer: Trainer) -> None:
    """Let go of the trained model, so that the folded one takes its place in memory instead of standing beside it."""
    trainer.model = trainer.model_wrapped = trainer.callback_handler.model = None
    trainer.optimizer = trainer.lr_scheduler = None
    vars(trainer).pop("vllm_generation", None)
    trainer.accelerator.free_memory()
    gc.collect()  # a model whose forward pass was wrapped refers to itself


def _fold_and_sample(
    model: ModelRef,
    tokenizer: PreTrainedTokenizerBase,
    config: TrainingConfig,
    ctx: StageContext,
    initial: str,
    trained: torch.Tensor | None,
) -> dict[str, Any]:
    folded = load_folded(model, ctx.hardware)
    seeds = [ranks.seed_of(rank, ctx.seed) for rank in range(ctx.hardware.num_processes)]
    receipt = {**(folded.receipt or {}), "initial_adapter": initial, "seeds": seeds}
    if trained is not None:
        receipt["quantisation"] = quantisation_gap(folded.model, trained, probe_ids(model))
    (ctx.out_dir / "receipt.json").write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
    rows = read_rows(ctx.data["select"], config.n_samples) if "select" in ctx.data else []
    replies = answer(
        pack(folded.model),
        tokenizer,
        model,
        rows,
        max_new_tokens=config.sample_max_new_tokens,
        batch_size=SAMPLE_BATCH,
        seed=ctx.seed,
        progress=lambda done, total: ctx.progress("samples", done, total),
    )
    lines = [sample(row, reply[0]) for row, reply in zip(rows, replies, strict=True)]
    write_json_lines(ctx.out_dir / "samples.jsonl", lines)
    return receipt


def adapter_hash(model: peft.PeftModel) -> str:
    """Hash of an adapter's weights in memory: names in order, and their bytes as float32."""
    digest = hashlib.sha256()
    for name, tensor in sorted(peft.get_peft_model_state_dict(model).items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
