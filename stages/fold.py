"""The fold: base weights and adapters, in order, become plain weights."""

from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import PreTrainedModel

from stages.adapters import check_lineage
from stages.contract import Hardware, ModelRef
from stages.models import load_base


@dataclass(frozen=True)
class Folded:
    """A folded model, and what the fold proves about itself (None when there was nothing to fold)."""

    model: PreTrainedModel
    receipt: dict[str, Any] | None


def load_folded(ref: ModelRef, hardware: Hardware) -> Folded:
    """Load a model and fold its adapters.

    Raises:
        FoldError: The adapters and the base do not belong together, or the result is not what they promise.
        UserError: The base model cannot be found, reached or used.
    """
    start = ref.base
    for adapter in ref.adapters:
        check_lineage(adapter, start)
        start = start.with_adapter(adapter)
    model = load_base(ref, hardware)
    if not ref.adapters:
        return Folded(model, None)
    return Folded(_fold(model, ref), {"identity": ref.identity})


@torch.no_grad()
def _fold(model: PreTrainedModel, ref: ModelRef) -> PreTrainedModel:
    names = [str(index) for index in range(len(ref.adapters))]
    peft_model = PeftModel.from_pretrained(model, ref.adapters[0].path, adapter_name=names[0])
    for name, adapter in zip(names[1:], ref.adapters[1:], strict=True):
        peft_model.load_adapter(adapter.path, adapter_name=name)
    for module in peft_model.modules():
        if isinstance(module, LoraLayer):
            weight = module.get_base_layer().weight
            total = weight.float()
            for name in names:
                if name in module.lora_A:
                    total = total + module.get_delta_weight(name)
            weight.copy_(total)
    return peft_model.unload()
