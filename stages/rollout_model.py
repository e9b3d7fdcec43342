"""The model that completions are sampled from: the policy with its adapter folded in, beside the one that is trained.

A decoding step is bound by how fast weights are read, and an adapter makes three products of every one. The folded
weights are made anew from the untouched base weights after every optimiser step, so that nothing drifts. They cost the
memory of the adapted weights once more; all others are shared.
"""

import copy

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from stages.fold import adapter_delta, lora_layers
from stages.packed import PackedLinear, pack


class RolloutModel:
    """A plain model that samples as an adapted one would.

    Args:
        model: The model before it gets an adapter.

    Attributes:
        plain: The plain model, as of the last `refresh`.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        shared = {id(parameter): parameter for parameter in model.parameters()}
        self.plain: PreTrainedModel = pack(copy.deepcopy(model, memo=shared).eval())

    @torch.no_grad()
    def refresh(self, adapted: PeftModel) -> None:
        """Fold the adapter as it is now, in float32."""
        for name, layer in lora_layers(adapted):
            weight = layer.get_base_layer().weight + adapter_delta(layer, adapted.active_adapter)
            folded = self.plain.get_submodule(name)
            if isinstance(folded, PackedLinear):
                folded.pack(weight)
            else:
                folded.weight = torch.nn.Parameter(weight, requires_grad=False)
