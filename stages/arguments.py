"""From Ratchet's training section to the arguments of a TRL trainer.

TRL's and transformers' defaults differ from Ratchet's (bfloat16 and gradient checkpointing on, NaN losses hidden,
logging every ten steps, checkpoints every 500), so every one that matters is written out here. What is written out is
owned by Ratchet: the `trainer` mapping of a section may set any other field of the installed TRL configuration.
"""

import dataclasses
import types
import typing
from typing import Any, TypeVar

from transformers import TrainingArguments

from conf.errors import ConfigError
from conf.loader import suggestion
from conf.processes import share
from conf.training import TrainingConfig
from conf.vllm import VLLMConfig
from stages.checkpoints import DRAFT, FOLDER
from stages.contract import StageContext

Arguments = TypeVar("Arguments", bound=TrainingArguments)

OUR_NAMES = {
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "grad_accum",
    "num_train_epochs": "epochs",
    "lr_scheduler_type": "schedule",
    "activation_checkpointing": "gradient_checkpointing",
    "gradient_checkpointing": "gradient_checkpointing",
    "num_generations": "group_size",
    "max_completion_length": "max_new_tokens",
    "mask_truncated_completions": "mask_truncated",
}
"""Where Ratchet's key in the same section has another name than TRL's."""

GLOBAL_NAMES = {
    "seed": "seed",
    "data_seed": "seed",
    "output_dir": "runs_dir",
    "bf16": "hardware.dtype",
    "fp16": "hardware.dtype",
    "use_cpu": "hardware.device",
    "fsdp": "hardware.accelerate_config",
    "fsdp_config": "hardware.accelerate_config",
    "deepspeed": "hardware.accelerate_config",
    "ddp_backend": "hardware.device",
    "report_to": "tracking.uri",
    "trust_remote_code": "model.trust_remote_code",
    "use_vllm": "reinforce.vllm.mode",
    **{f"vllm_{field.name}": f"reinforce.vllm.{field.name}" for field in dataclasses.fields(VLLMConfig)},
}
"""Where Ratchet's key stands outside the stage's section."""


def trl_arguments(
    cls: type[Arguments], config: TrainingConfig, ctx: StageContext, *, section: str, max_steps: int, **own: Any
) -> Arguments:
    """The arguments of a TRL trainer.

    Args:
        cls: The TRL configuration class, e.g. `trl.SFTConfig`.
        config: The stage's section.
        ctx: The stage's context.
        section: The section's name, for messages.
        max_steps: Optimiser steps.
        **own: Further fields that the stage sets; they belong to Ratchet too.

    Raises:
        ConfigError: `trainer` names a field that Ratchet owns, one that `cls` does not have,
            or a value it cannot take.
    """
    arguments = {**_arguments(config, ctx, max_steps), **own}
    hints = {field.name: field.type for field in dataclasses.fields(cls)}
    for name, value in config.trainer.items():
        _check_extra(f"{section}.trainer", name, value, hints, owned=arguments, cls=cls)
    try:
        made: Arguments = cls(**arguments, **config.trainer)
    except (TypeError, ValueError) as error:
        if not config.trainer:
            raise
        raise ConfigError(f"{section}.trainer: {error}") from error
    return made


def _arguments(config: TrainingConfig, ctx: StageContext, max_steps: int) -> dict[str, Any]:
    mine = share(config, ctx.hardware.num_processes)
    return {
        "output_dir": str(ctx.out_dir / FOLDER / DRAFT),
        "seed": ctx.seed,
        "data_seed": ctx.seed,
        "full_determinism": False,  # stages.hardware.prepare has seen to it
        # how long, and in which batches
        "max_steps": max_steps,
        "num_train_epochs": 1.0,
        "per_device_train_batch_size": mine.batch_size,
        "gradient_accumulation_steps": mine.grad_accum,
        "average_tokens_across_devices": True,  # a mean over tokens is one over those of all processes
        "accelerator_config": None,  # its defaults: whole batches are dealt out to the processes in turn
        "auto_find_batch_size": False,
        "dataloader_drop_last": False,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": ctx.hardware.device == "cuda",
        "remove_unused_columns": False,
        # the optimiser
        "optim": "adamw_torch",
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": config.schedule.value,
        "warmup_steps": config.warmup_steps,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        # where, and in which precision
        "use_cpu": ctx.hardware.device == "cpu",
        "bf16": ctx.hardware.dtype == "bfloat16",
        "fp16": ctx.hardware.dtype == "float16",
        "activation_checkpointing": config.gradient_checkpointing,  # the new name; the old one follows it
        # what is reported and kept
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "report_to": "none",
        "eval_strategy": "no",  # stages.held_out looks
        "per_device_eval_batch_size": config.batch_size,
        "save_strategy": "steps",
        "save_steps": config.save_steps,
        "save_total_limit": None,  # stages.checkpoints removes old ones
        "save_only_model": False,
        "load_best_model_at_end": False,
        "push_to_hub": False,
    }


def _check_extra(where: str, name: str, value: Any, hints: dict[str, Any], owned: dict[str, Any], cls: type) -> None:
    if name in owned or name in OUR_NAMES or name in GLOBAL_NAMES:
        raise ConfigError(f"{where}.{name}: is set by Ratchet{_instead(where, name)}")
    if name not in hints:
        taken = {*owned, *OUR_NAMES, *GLOBAL_NAMES}
        allowed = [field for field in hints if field not in taken]
        raise ConfigError(
            f"{where}.{name}: unknown key; {suggestion(name, allowed)}allowed are the fields of TRL's {cls.__name__} "
            f"that Ratchet does not set, such as {', '.join(allowed[:3])}"
        )
    # transformers checks no types, and would for example open a number as a file
    kinds = _kinds(hints[name])
    if not any(type(value) is kind or (kind is float and type(value) is int) for kind in kinds):
        expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ConfigError(f"{where}.{name}: expected {expected}, got {value!r}")


def _kinds(hint: Any) -> list[type]:
    """The plain types that an annotation allows, without their parameters; an enum is written as text."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    kinds = [typing.get_origin(member) or member for member in members]
    return [kind for kind in kinds if isinstance(kind, type) and kind.__module__ == "builtins"]


def _instead(where: str, name: str) -> str:
    """What to write in place of a field that Ratchet owns, as the end of a sentence."""
    section = where.removesuffix(".trainer")
    if name in GLOBAL_NAMES:
        return f"; use {GLOBAL_NAMES[name]}"
    ours = OUR_NAMES.get(name, name)
    fields = {
        "beta",
        "temperature",
        "max_length",
        *OUR_NAMES.values(),
        *(field.name for field in dataclasses.fields(TrainingConfig)),
    }
    return f"; use {section}.{ours}" if ours in fields else " and cannot be changed"
