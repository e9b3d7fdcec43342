"""The model that completions are sampled from: the policy with its adapter folded in, beside the one that is trained.

A decoding step is bound by how fast weights are read, and an adapter makes three products of every one. The folded
weights are made anew from the untouched base weights after every optimiser step, so that nothing drifts. They cost the
memory of the adapted weights once more; all others are shared.
"""

import copy

import torch
from peft import PeftModel
from peft.tuners.lora import Linear, LoraLayer
from transformers import PreTrainedModel

from stages.fold import adapter_delta, lora_layers
from stages.packed import pack
from stages.packed_linear import PackedLinear


class RolloutModel:
    """A plain model that samples as an adapted one would.

    Args:
        model: The model before it gets an adapter; one that `can_follow` says yes to.

    Attributes:
        plain: The plain model, as of the last `refresh`.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        shared = {id(parameter): parameter for parameter in model.parameters()}
        self.plain: PreTrainedModel = pack(copy.deepcopy(model, memo=shared).eval())

    @staticmethod
    def can_follow(model: PreTrainedModel) -> bool:
        """Whether folding the adapter gives the adapted model to rounding: in float32, and nothing else.

        In 16 bits rounding would make it another model, and in 4 bits there is nothing to fold into.
        """
        return all(parameter.dtype == torch.float32 for parameter in model.parameters())

    @torch.no_grad()
    def refresh(self, adapted: PeftModel) -> None:
        """Fold the adapter as it is now, in float32."""
        layers = dict(lora_layers(adapted))
        for packed in self.plain.modules():
            if isinstance(packed, PackedLinear) and not layers.keys().isdisjoint(packed.names):
                packed.pack([_weight(adapted.base_model.model.get_submodule(name), adapted) for name in packed.names])
                for name in packed.names:
                    layers.pop(name, None)
        for name, layer in layers.items():
            self.plain.get_submodule(name).weight = torch.nn.Parameter(_weight(layer, adapted), requires_grad=False)


def _weight(layer: torch.nn.Module, adapted: PeftModel) -> torch.Tensor:
    """A layer's weight, with what the adapter adds to it."""
    if not isinstance(layer, LoraLayer):
        return layer.weight  # type: ignore[return-value]
    weight: torch.Tensor = layer.get_base_layer().weight
    adapter = adapted.active_adapter
    if type(layer) is Linear and adapter in layer.lora_A and not layer.fan_in_fan_out:  # in one pass over the weight
        below, above = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
        return torch.addmm(weight, above, below, alpha=layer.scaling[adapter])
    return weight + adapter_delta(layer, adapter)
