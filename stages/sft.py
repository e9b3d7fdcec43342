"""Supervised fine-tuning: raise the likelihood of each row's reply, given its prompt.

TRL's `SFTTrainer` on rows tokenised here, so that the ids are those the model sees at inference: generation prompt,
reply, end token. The loss is the mean negative log-likelihood over the reply and its end, token by token over the
whole optimiser step. No packing, no TRL templating.
"""

import functools
from typing import Any

import trl
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from conf.errors import UserError
from conf.training import SFTConfig
from stages.accelerate_config import is_sharded
from stages.arguments import trl_arguments
from stages.chat import prompt_ids, reply_ids
from stages.contract import ModelRef, StageContext, StageResult
from stages.hardware import prepare
from stages.held_out import held_out_loss, held_out_rows
from stages.models import load_tokenizer
from stages.order import wrapped_order
from stages.quantise import load_start
from stages.rows import Row, read_rows
from stages.shared_prefix import IGNORED, share_prefixes
from stages.training import new_adapter, planned_steps, train_and_fold


def run_sft(cfg: SFTConfig, ctx: StageContext) -> StageResult:
    """Train a new adapter on the replies of `ctx.data["train"]`.

    Raises:
        UserError: A row has no reply, no row's reply fits into `max_length`, or there are fewer rows than a step takes.
    """
    prepare(ctx.hardware, ctx.seed)
    tokenizer = load_tokenizer(ctx.start)
    rows, numbers, counts = tokenise(read_rows(ctx.data["train"]), tokenizer, ctx.start, cfg.max_length)
    trainer = sft_trainer(cfg, ctx, tokenizer, rows)

    @functools.cache
    def held_out() -> Dataset:
        return Dataset.from_list(tokenise(held_out_rows(cfg, ctx), tokenizer, ctx.start, cfg.max_length)[0])

    def measure() -> dict[str, float]:
        return held_out_loss(trainer, held_out())

    return train_and_fold(trainer, tokenizer, cfg, ctx, numbers=numbers, measure=measure, metrics=counts)


def tokenise(
    rows: list[Row], tokenizer: PreTrainedTokenizerBase, ref: ModelRef, max_length: int
) -> tuple[list[dict[str, list[int]]], list[int], dict[str, float]]:
    """Rows as `input_ids` and `labels` of equal length, their numbers from 1, and how many were dropped or cut.

    A row of more than `max_length` tokens loses the end of its reply; one whose prompt alone fills it is dropped.
    """
    tokenised, numbers = [], []
    truncated = 0
    for number, row in enumerate(rows, start=1):
        if row.response is None:
            raise UserError(f"training row {number} has no reply to learn; map one with `response` in its data source")
        prompt = prompt_ids(tokenizer, ref.config, row)
        reply = reply_ids(tokenizer, ref, row.response)
        kept = reply[: max(0, max_length - len(prompt))]
        if kept:
            truncated += len(kept) < len(reply)
            tokenised.append({"input_ids": prompt + kept, "labels": [IGNORED] * len(prompt) + kept})
            numbers.append(number)
    if not tokenised:
        raise UserError(f"none of the {len(rows)} training rows leaves room for a reply; max_length is {max_length}")
    return tokenised, numbers, {"dropped_rows": len(rows) - len(tokenised), "truncated_rows": truncated}


def sft_trainer(
    cfg: SFTConfig, ctx: StageContext, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, list[int]]]
) -> trl.SFTTrainer:
    """TRL's trainer around the folded start model and a new adapter."""
    steps = planned_steps(cfg, len(rows))
    order = wrapped_order(len(rows), steps * cfg.batch_size * cfg.grad_accum, ctx.seed)
    trainer = trl.SFTTrainer(
        model=load_start(ctx.start, ctx.hardware),
        args=sft_arguments(cfg, ctx, steps),
        train_dataset=Dataset.from_list(rows).select(order),
        processing_class=tokenizer,
        peft_config=new_adapter(cfg.lora),
    )
    if cfg.shared_prefix and not is_sharded(ctx.hardware.accelerate):
        examples = [row["input_ids"] for row in rows]
        share_prefixes(trainer.model, examples, statistics=["entropy", "largest"], say=ctx.say)
    return trainer


def sft_arguments(cfg: SFTConfig, ctx: StageContext, steps: int) -> trl.SFTConfig:
    """TRL's arguments for rows that are tokenised here.

    Raises:
        ConfigError: `trainer` names a field that Ratchet owns, or one that `SFTConfig` does not have.
    """
    own: dict[str, Any] = {
        "train_sampling_strategy": "sequential",  # the order is ours
        "max_length": cfg.max_length,
        "packing": False,
        "padding_free": False,
        "shuffle_dataset": False,
        "assistant_only_loss": False,
        "completion_only_loss": None,
        "dataset_kwargs": {"skip_prepare_dataset": True},
    }
    return trl_arguments(trl.SFTConfig, cfg, ctx, section="sft", max_steps=steps, **own)
