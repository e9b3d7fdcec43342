"""Frozen weights in the order in which a CPU reads them.

A product with few rows, such as a decoding step, is bound by memory, and MKL rearranges the whole weight every time.
oneDNN takes weights that were rearranged once; torch's inductor uses the same operators when it freezes a model.
"""

from typing import TypeVar

import torch

Model = TypeVar("Model", bound=torch.nn.Module)


def pack(model: Model) -> Model:
    """Pack the linear layers of a model that will only answer, in place, where that is of use; returns the model.

    Their weights are let go of, but for those that other modules use, too (tied embeddings).
    """
    for name, layer in list(model.named_modules()):
        if type(layer) is torch.nn.Linear and can_pack(layer.weight):
            model.set_submodule(name, PackedLinear(layer.weight, layer.bias))
    return model


def can_pack(weight: torch.Tensor) -> bool:
    """Whether products with this weight profit: float32 on a CPU for which torch has oneDNN."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and torch._C._has_mkldnn


class PackedLinear(torch.nn.Module):
    """A linear layer for inference. It holds its weight packed, and cannot give it back."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.bias = bias
        self.pack(weight)

    def pack(self, weight: torch.Tensor) -> None:
        """Take another weight: (outputs, inputs)."""
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Like `torch.nn.Linear`."""
        outputs: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")
        return outputs
