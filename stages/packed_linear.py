"""Frozen weights in the order in which a CPU reads them.

A product with few rows, such as a decoding step, is bound by memory, and MKL rearranges the whole weight every time.
oneDNN takes weights that were rearranged once; torch's inductor uses the same operators when it freezes a model.
"""

from collections.abc import Sequence

import torch


def can_pack(layer: torch.nn.Module) -> bool:
    """Whether a layer is linear and profits: in float32, on a CPU for which torch has oneDNN."""
    if type(layer) is not torch.nn.Linear or not torch._C._has_mkldnn:
        return False
    return layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32


class PackedLinear(torch.nn.Module):
    """Linear layers for inference, as one: outputs one after the other. It cannot give its weight back.

    Args:
        layers: Linear layers with the same inputs, all with a bias or none.
        names: What they are called in the model.
    """

    def __init__(self, layers: Sequence[torch.nn.Linear], names: Sequence[str]) -> None:
        super().__init__()
        self.names = names
        biases: list[torch.Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        self.bias = torch.cat(biases).detach() if biases else None
        self.pack([layer.weight for layer in layers])

    def pack(self, weights: Sequence[torch.Tensor]) -> None:
        """Take other weights, one per layer: (outputs, inputs)."""
        weight = weights[0] if len(weights) == 1 else torch.cat(list(weights))
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Like `torch.nn.Linear`."""
        outputs: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")
        return outputs
