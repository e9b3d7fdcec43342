"""What Ratchet sets itself, and what the `trainer` mapping may and may not say."""

from typing import Any

import pytest
import trl

from conf.errors import ConfigError
from conf.training import Schedule, SFTConfig, TrainingConfig
from stages.arguments import trl_arguments
from stages.contract import Hardware


def make(context: Any, config: TrainingConfig, **own: Any) -> trl.SFTConfig:
    return trl_arguments(trl.SFTConfig, config, context("sft"), section="sft", max_steps=7, **own)


def test_nothing_is_left_to_defaults_that_differ(context: Any) -> None:
    arguments = make(context, SFTConfig(batch_size=3, grad_accum=2, learning_rate=0.5, schedule=Schedule.cosine))
    expected = {
        "bf16": False,
        "fp16": False,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "save_steps": 10,
        "save_total_limit": None,
        "save_only_model": False,
        "eval_strategy": "no",
        "report_to": [],
        "push_to_hub": False,
        "max_steps": 7,
        "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 2,
        "learning_rate": 0.5,
        "lr_scheduler_type": "cosine",
        "optim": "adamw_torch",
        "use_cpu": True,
        "seed": 0,
        "data_seed": 0,
    }
    assert {name: getattr(arguments, name) for name in expected} == expected


def test_precision_follows_the_model(context: Any) -> None:
    ctx = context("sft", hardware=Hardware(dtype="bfloat16"))
    arguments = trl_arguments(trl.SFTConfig, SFTConfig(), ctx, section="sft", max_steps=1)
    assert (arguments.bf16, arguments.fp16) == (True, False)


def test_any_other_field_is_passed_on(context: Any) -> None:
    arguments = make(
        context, SFTConfig(trainer={"adam_beta2": 0.95, "label_smoothing_factor": 0, "neftune_noise_alpha": 5})
    )
    assert (arguments.adam_beta2, arguments.neftune_noise_alpha) == (0.95, 5)


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({"learning_rate": 1.0}, "sft.trainer.learning_rate: is set by Ratchet; use sft.learning_rate"),
        ({"per_device_train_batch_size": 4}, "sft.trainer.per_device_train_batch_size: .*; use sft.batch_size"),
        ({"num_train_epochs": 4}, "sft.trainer.num_train_epochs: .*; use sft.epochs"),
        ({"gradient_checkpointing": True}, "sft.trainer.gradient_checkpointing: .*; use sft.gradient_checkpointing"),
        ({"bf16": True}, "sft.trainer.bf16: .*; use hardware.dtype"),
        ({"seed": 1}, "sft.trainer.seed: .*; use seed"),
        ({"logging_steps": 5}, "sft.trainer.logging_steps: is set by Ratchet and cannot be changed"),
        ({"packing": True}, "sft.trainer.packing: is set by Ratchet and cannot be changed"),
        ({"adam_beta3": 0.9}, "sft.trainer.adam_beta3: unknown key; did you mean 'adam_beta"),
        ({"adam_beta2": "high"}, "sft.trainer.adam_beta2: expected float, got 'high'"),
        ({"lr_scheduler_kwargs": 3}, "sft.trainer.lr_scheduler_kwargs: expected dict or str or null, got 3"),
        ({"debug": "bogus"}, "sft.trainer: bogus is not a valid DebugOption"),
    ],
)
def test_refusals_name_the_key_and_what_is_right(context: Any, trainer: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(context, SFTConfig(trainer=trainer), packing=False)
