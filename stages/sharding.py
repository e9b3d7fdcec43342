"""The weights of an adapter whose parts are with several processes: FSDP and ZeRO-3 leave each of them one part."""

from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from transformers import Trainer


def whole_weights(trainer: Trainer) -> dict[str, Any] | None:
    """The trained weights by name, put together for rank 0; None where every process has them whole, anyway.

    All processes ask at the same time.
    """
    if trainer.is_deepspeed_enabled and trainer.args.deepspeed_plugin.zero_stage == 3:
        weights: dict[str, Any] = trainer.accelerator.get_state_dict(trainer.model_wrapped)
        return weights
    return gathered_weights(trainer.model)


def gathered_weights(model: torch.nn.Module) -> dict[str, Any] | None:
    """The same for a model that FSDP has divided, or has not."""
    if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return None
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    return get_model_state_dict(model, options=options)


def own_part(parameter: torch.Tensor) -> torch.Tensor:
    """What this process has of a parameter; it may have no elements."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
