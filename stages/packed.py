"""Models that will only answer, made ready for it."""

from typing import TypeVar

import torch

from stages.packed_decoder import PackedDecoderLayer
from stages.packed_linear import PackedLinear, can_pack

Model = TypeVar("Model", bound=torch.nn.Module)


def pack(model: Model) -> Model:
    """Pack the linear layers of a model that will only answer, in place, where that is of use; returns the model.

    Decoder layers of a known kind are replaced as a whole. Weights are let go of, but for those that other modules
    use, too (tied embeddings).
    """
    for name, module in list(model.named_modules()):
        if PackedDecoderLayer.can_replace(module):
            model.set_submodule(name, PackedDecoderLayer(module, name))
    for name, module in list(model.named_modules()):
        if can_pack(module):
            model.set_submodule(name, PackedLinear([module], [name]))
    return model
