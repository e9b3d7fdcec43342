"""What all training stages share: how many steps, in which order, the new adapter, progress, and the finish.

A training stage tokenises its rows, builds a TRL trainer from `trl_arguments` and `new_adapter`, and hands it to
`train_and_fold`. The adapter is made by the trainer right after seeding, so equal seeds give equal adapters.
"""

import hashlib
import json
import math
import time
from collections.abc import Mapping
from typing import Any

import peft
from transformers import PreTrainedTokenizerBase, Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_callback import PrinterCallback
from transformers.training_args import TrainingArguments

from conf.sections import LoraConfig, TrainingConfig
from stages.adapters import save_adapter
from stages.contract import ModelRef, StageContext, StageResult
from stages.fold import load_folded
from stages.order import require_step
from stages.packed import pack
from stages.progress import COMMON
from stages.rows import read_rows
from stages.samples import answer, sample, write_json_lines

SAMPLE_BATCH = 16
"""Prompts answered at once for samples.jsonl."""


class DivergedError(RuntimeError):
    """Training produced a number that is not finite; the message names the step."""


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


class ProgressRows(TrainerCallback):  # type: ignore[misc]
    """Turns what TRL logs into one row per optimiser step, under Ratchet's names.

    Args:
        ctx: Takes the rows and the progress.
        columns: TRL's names of further columns, and ours.
        epochs_per_step: Share of the training rows that one optimiser step uses.
    """

    def __init__(self, ctx: StageContext, columns: Mapping[str, str], epochs_per_step: float) -> None:
        self.ctx = ctx
        self.columns = {**COMMON, **columns}
        self.epochs_per_step = epochs_per_step
        self.last: dict[str, float] = {}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start the clock."""
        self.started = time.monotonic()
        self.ctx.progress("train", state.global_step, state.max_steps)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Pass on one optimiser step.

        Raises:
            DivergedError: A number is not finite.
        """
        if logs is None or "loss" not in logs:  # the trainer's summary at the end
            return
        row = {ours: float(logs[name]) for name, ours in self.columns.items() if name in logs}
        for name, value in row.items():
            if not math.isfinite(value):
                raise DivergedError(f"step {state.global_step}: {name} is {value}; try a lower learning_rate")
        self.last = {
            "step": state.global_step,
            "epoch": round(state.global_step * self.epochs_per_step, 6),
            "time": round(time.monotonic() - self.started, 3),
            **row,
        }
        self.ctx.log_metrics(self.last)
        self.ctx.progress("train", state.global_step, state.max_steps)


def train_and_fold(
    trainer: Trainer,
    tokenizer: PreTrainedTokenizerBase,
    config: TrainingConfig,
    ctx: StageContext,
    *,
    rows: int,
    columns: Mapping[str, str] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> StageResult:
    """Train, keep the adapter, fold it from disk, and let the folded model answer held-out prompts.

    Args:
        trainer: A TRL trainer around a fresh adapter.
        tokenizer: The model's.
        config: The stage's section.
        ctx: The stage's context.
        rows: Training rows (or prompts) that one pass has.
        columns: TRL's names of further progress columns, and ours.
        metrics: What the stage itself counted.

    Raises:
        DivergedError: A loss or gradient is not finite.
    """
    initial = adapter_hash(trainer.model)
    callback = ProgressRows(ctx, columns or {}, config.batch_size * config.grad_accum / rows)
    trainer.add_callback(callback)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    model = ctx.start.with_adapter(save_adapter(trainer.model, ctx.start, ctx.out_dir / "adapter"))
    _release(trainer)
    receipt = _fold_and_sample(model, tokenizer, config, ctx, initial)
    last: dict[str, float] = {name: callback.last[name] for name in ("loss", "step") if name in callback.last}
    return StageResult(
        model=model,
        metrics={**last, "train_rows": float(rows), **(metrics or {})},
        artifacts={"samples": ctx.out_dir / "samples.jsonl"},
        receipt=receipt,
    )


def _release(trainer: Trainer) -> None:
    """Let go of the trained model, so that the folded one takes its place in memory instead of standing beside it."""
    trainer.model = trainer.model_wrapped = trainer.callback_handler.model = None
    trainer.optimizer = trainer.lr_scheduler = None
    trainer.accelerator.free_memory()  # lets go of its own references, and collects


def _fold_and_sample(
    model: ModelRef, tokenizer: PreTrainedTokenizerBase, config: TrainingConfig, ctx: StageContext, initial: str
) -> dict[str, Any]:
    folded = load_folded(model, ctx.hardware)
    receipt = {**(folded.receipt or {}), "initial_adapter": initial}
    (ctx.out_dir / "receipt.json").write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
    rows = read_rows(ctx.data["select"])[: config.n_samples] if "select" in ctx.data else []
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
