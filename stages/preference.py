"""Preference optimisation: make the better reply of a pair more likely than the worse one.

DPO (Rafailov et al. 2023, arXiv:2305.18290) on TRL's `DPOTrainer`, where the reference model is the folded start
model: the same weights with the new adapter switched off. ORPO (Hong et al. 2024, arXiv:2403.07691) on TRL's
experimental `ORPOTrainer`, which needs no reference and adds the likelihood of the chosen sequence.

Both trainers tokenise text in their own ways (a second BOS token, merges across the boundary of prompt and reply), so
both are given token ids made here: generation prompt, reply, end token.
"""

import functools
from typing import Any

import trl
from datasets import Dataset, disable_progress_bars, enable_progress_bars
from transformers import PreTrainedTokenizerBase, Trainer, TrainingArguments

from conf.errors import UserError
from conf.processes import share
from conf.training import PreferenceConfig, PreferenceMethod
from stages.accelerate_config import is_sharded
from stages.arguments import trl_arguments
from stages.chat import prompt_ids, reply_ids
from stages.contract import ModelRef, StageContext, StageResult
from stages.hardware import prepare
from stages.held_out import held_out_loss, held_out_rows
from stages.models import load_tokenizer
from stages.order import wrapped_order
from stages.orpo import ORPOConfig, Pair, TokenisedORPOTrainer, orpo_row
from stages.progress import PREFERENCE
from stages.quantise import load_start
from stages.rows import Row, read_rows
from stages.shared_prefix import share_prefixes
from stages.token_head import STATISTICS
from stages.training import new_adapter, planned_steps, train_and_fold


class TokenisedDPOTrainer(trl.DPOTrainer):  # type: ignore[misc]
    """DPO on rows that already are `prompt_ids`, `chosen_ids`, `rejected_ids`."""

    def _prepare_dataset(self, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
        return dataset


def run_preference(cfg: PreferenceConfig, ctx: StageContext) -> StageResult:
    """Train a new adapter on the pairs of `ctx.data["train"]`.

    Raises:
        UserError: A row has no pair, no pair fits into `max_length`, or there are fewer rows than a step takes.
    """
    prepare(ctx.hardware, ctx.seed)
    tokenizer = load_tokenizer(ctx.start)
    pairs, numbers, counts = tokenise(read_rows(ctx.data["train"]), tokenizer, ctx.start, cfg.max_length)
    trainer = preference_trainer(cfg, ctx, tokenizer, pairs)

    @functools.cache
    def held_out() -> Dataset:
        rows, _, _ = tokenise(held_out_rows(cfg, ctx), tokenizer, ctx.start, cfg.max_length)
        return Dataset.from_list([row_of(cfg, pair) for pair in rows])

    def measure() -> dict[str, float]:
        return held_out_loss(trainer, held_out())

    return train_and_fold(
        trainer, tokenizer, cfg, ctx, numbers=numbers, measure=measure, columns=PREFERENCE, metrics=counts
    )


def tokenise(
    rows: list[Row], tokenizer: PreTrainedTokenizerBase, ref: ModelRef, max_length: int
) -> tuple[list[Pair], list[int], dict[str, float]]:
    """Rows as token ids, their numbers from 1, and how many were dropped or cut.

    Replies lose what goes beyond `max_length`; a row whose prompt alone fills it is dropped.
    """
    pairs: list[Pair] = []
    numbers: list[int] = []
    truncated = 0
    for number, row in enumerate(rows, start=1):
        if row.chosen is None or row.rejected is None:
            raise UserError(
                f"training row {number} has no pair of replies; map `chosen` and `rejected` in its data source, or "
                "take the rows of a pairs step: data: {from: <step>}"
            )
        prompt = prompt_ids(tokenizer, ref.config, row)
        chosen, rejected = (reply_ids(tokenizer, ref, reply) for reply in (row.chosen, row.rejected))
        room = max(0, max_length - len(prompt))
        if room:
            truncated += max(len(chosen), len(rejected)) > room
            pairs.append({"prompt_ids": prompt, "chosen_ids": chosen[:room], "rejected_ids": rejected[:room]})
            numbers.append(number)
    if not pairs:
        raise UserError(f"none of the {len(rows)} training rows leaves room for a reply; max_length is {max_length}")
    return pairs, numbers, {"dropped_rows": len(rows) - len(pairs), "truncated_rows": truncated}


def preference_trainer(
    cfg: PreferenceConfig, ctx: StageContext, tokenizer: PreTrainedTokenizerBase, pairs: list[Pair]
) -> Trainer:
    """TRL's trainer for the method, around the folded start model and a new adapter."""
    steps = planned_steps(cfg, len(pairs), "pairs")
    order = wrapped_order(len(pairs), steps * cfg.batch_size * cfg.grad_accum, ctx.seed)
    make = _dpo_trainer if cfg.method is PreferenceMethod.dpo else _orpo_trainer
    return make(
        cfg,
        ctx,
        [pairs[index] for index in order],
        preference_arguments(cfg, ctx, steps),
        model=load_start(ctx.start, ctx.hardware),
        processing_class=tokenizer,
        peft_config=new_adapter(cfg.lora),
    )


def row_of(cfg: PreferenceConfig, pair: Pair) -> Pair:
    """A pair as the method's trainer takes it."""
    return orpo_row(pair) if cfg.method is PreferenceMethod.orpo else pair


def preference_arguments(cfg: PreferenceConfig, ctx: StageContext, steps: int) -> TrainingArguments:
    """TRL's arguments for the method.

    Raises:
        ConfigError: `trainer` names a field that Ratchet owns, or one that the configuration class does not have.
    """
    own: dict[str, Any] = {
        "train_sampling_strategy": "sequential",  # the order is ours
        "beta": cfg.beta,
        "max_length": cfg.max_length,
        "disable_dropout": False,  # it would silently switch `lora.dropout` off
    }
    if cfg.method is PreferenceMethod.orpo:
        return trl_arguments(ORPOConfig, cfg, ctx, section="preference", max_steps=steps, **own)
    own = {**own, "precompute_ref_log_probs": False, "sync_ref_model": False, "padding_free": False}
    return trl_arguments(trl.DPOConfig, cfg, ctx, section="preference", max_steps=steps, **own)


def _dpo_trainer(
    cfg: PreferenceConfig, ctx: StageContext, pairs: list[Pair], arguments: trl.DPOConfig, **shared: Any
) -> Trainer:
    trainer = TokenisedDPOTrainer(args=arguments, train_dataset=Dataset.from_list(pairs), **shared)
    if cfg.shared_prefix and not is_sharded(ctx.hardware.accelerate):
        statistics = [name for name in STATISTICS if name != "log_sum_sq_probs" or arguments.use_weighting]
        share_prefixes(trainer.model, [pair["prompt_ids"] for pair in pairs], statistics=statistics, say=ctx.say)
    return trainer


def _orpo_trainer(
    cfg: PreferenceConfig, ctx: StageContext, pairs: list[Pair], arguments: ORPOConfig, **shared: Any
) -> Trainer:
    dataset = Dataset.from_list([row_of(cfg, pair) for pair in pairs])
    disable_progress_bars()  # the trainer maps three do-nothing functions over the rows
    try:
        trainer = TokenisedORPOTrainer(args=arguments, train_dataset=dataset, **shared)
    finally:
        enable_progress_bars()
    trainer.together = share(cfg, ctx.hardware.num_processes).together
    return trainer
