"""4-bit training (QLoRA, Dettmers et al. 2023, arXiv:2305.14314): the start model in NF4, a new adapter beside it.

Only training happens in 4 bits. A fold is always made of full-precision weights, and is what is scored, sampled for
data and shipped; so an adapter learns on weights that are not quite those it ends on. The receipt says how far apart
they are.

The model is not marked as transformers marks one that it quantises itself (`is_loaded_in_4bit`): TRL would then round
the adapter to bfloat16, in which small updates are lost. To peft its layers are the linear layers that they are.
"""

import copy
from typing import Any

import torch
from transformers import PreTrainedModel

from conf.errors import UserError
from stages.contract import Hardware, ModelRef
from stages.fold import load_folded
from stages.receipt import probe_logits


def load_start(ref: ModelRef, hardware: Hardware) -> PreTrainedModel:
    """The model that a training stage puts its adapter on: the fold, quantised where the hardware says so.

    Raises:
        FoldError: As `load_folded` does.
        UserError: The model cannot be had, or has nothing to quantise.
    """
    model = load_folded(ref, hardware).model
    if hardware.load_in_4bit:
        quantise(model)
    return model


def quantise(model: PreTrainedModel) -> None:
    """Quantise the linear layers of a model in place, one after the other; head and embeddings stay as they are.

    Raises:
        UserError: There are none.
    """
    head = model.get_output_embeddings()
    names = [name for name, layer in model.named_modules() if type(layer) is torch.nn.Linear and layer is not head]
    if not names:
        raise UserError("hardware.load_in_4bit: the model has no linear layers to quantise; leave it out")
    for name in names:
        model.set_submodule(name, _quantised(model.get_submodule(name)))


def _quantised(layer: Any) -> torch.nn.Module:
    """A layer in NF4 with double quantisation, which computes in the number type that its weight had."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    weight, kind = layer.weight.detach(), {"compress_statistics": True, "quant_type": "nf4"}
    quantised = Linear4bit(
        layer.in_features, layer.out_features, layer.bias is not None, compute_dtype=weight.dtype, device="meta", **kind
    )
    quantised.weight = Params4bit(weight, requires_grad=False, **kind).to(weight.device)  # moving it quantises
    quantised.bias = layer.bias
    # While a model answers, bitsandbytes would rearrange its weights for good, for CPU kernels that round to bfloat16
    # and that no gradient passes: the next training step would be wrong, and nothing would say so.
    quantised.support_avx512bf16_for_cpu = False
    module: torch.nn.Module = quantised.requires_grad_(False).train(layer.training)
    return module


def quantisation_gap(folded: PreTrainedModel, trained: torch.Tensor, ids: list[int]) -> dict[str, Any]:
    """How far 4-bit models are from the full-precision fold, on the probe prompt.

    Args:
        folded: What a training stage leaves.
        trained: Logits of the model in training, just before: 4-bit weights with the adapter beside them.
        ids: Token ids of the probe prompt.

    Returns:
        The largest and the mean difference of logits: `trained_vs_folded`, what leaving the 4-bit weights did; and
        `quantised_vs_folded`, what quantising the fold does, which is where the next 4-bit stage starts.
    """
    logits = probe_logits(folded, ids)
    again = copy.deepcopy(folded, memo={id(parameter): parameter for parameter in folded.parameters()})
    quantise(again)
    return {
        "type": "nf4",
        "trained_vs_folded": _differences(trained, logits),
        "quantised_vs_folded": _differences(probe_logits(again, ids), logits),
    }


def _differences(one: torch.Tensor, other: torch.Tensor) -> dict[str, float]:
    apart = (one - other).abs()
    return {"largest": float(apart.max()), "mean": float(apart.mean())}
