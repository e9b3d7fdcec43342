"""A decoder layer in fewer and larger operations.

A decoding step is so little work that calling an operation costs about as much as the operation. Transformers' layer
takes some sixty calls; this one computes the same in some twenty-five.
"""

from typing import Any

import torch
from torch.nn.functional import rms_norm
from transformers import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, eager_attention_forward
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from stages.packed_linear import PackedLinear, can_pack

KINDS = (LlamaDecoderLayer, Qwen2DecoderLayer)
"""Kinds of layers that are known to compute this, and nothing else."""

PROJECTIONS = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}


class PackedDecoderLayer(torch.nn.Module):
    """What replaces a decoder layer in a model that will only answer.

    Args:
        layer: One that `can_replace` says yes to.
        name: What it is called in the model.
    """

    attention: Any
    attention_norm: Any
    mlp_norm: Any
    act: Any

    def __init__(self, layer: Any, name: str) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
        self.act, self.attention = layer.mlp.act_fn, layer.self_attn
        self.heads, self.key_heads = (
            getattr(self.attention, f"{projection}_proj").out_features // self.attention.head_dim
            for projection in ("q", "k")
        )
        self.queries_keys_values = _joined(layer, name, "self_attn", "q_proj", "k_proj", "v_proj")
        self.attended = _joined(layer, name, "self_attn", "o_proj")
        self.gate_up = _joined(layer, name, "mlp", "gate_proj", "up_proj")
        self.down = _joined(layer, name, "mlp", "down_proj")
        for projection in PROJECTIONS["self_attn"]:
            delattr(self.attention, projection)  # it stays for what it tells of attention

    @staticmethod
    def can_replace(layer: Any) -> bool:
        """Whether it is of a known kind, and its products are plain linear layers that profit from packing."""
        return type(layer) in KINDS and all(
            can_pack(getattr(getattr(layer, part), name)) for part, names in PROJECTIONS.items() for name in names
        )

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_embeddings: Any = None,
        cache: Cache | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """As transformers calls it: (sequences, tokens, size) before and after."""
        attention, shape = self.attention, hidden_states.shape[:-1]
        joined = self.queries_keys_values(_normed(self.attention_norm, hidden_states))
        joined = joined.view(*shape, -1, attention.head_dim).transpose(1, 2)
        turned = _rotated(joined[:, : self.heads + self.key_heads], *position_embeddings)
        queries, keys = turned[:, : self.heads], turned[:, self.heads :]
        values = joined[:, self.heads + self.key_heads :]
        if cache is not None:
            keys, values = cache.update(keys, values, attention.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(attention.config._attn_implementation, eager_attention_forward)
        window = getattr(attention, "sliding_window", None)
        options = {**options, "scaling": attention.scaling, "sliding_window": window}
        found, _ = attend(attention, queries, keys, values, attention_mask, dropout=0.0, **options)
        hidden_states = hidden_states + self.attended(found.reshape(*shape, -1))
        gate, up = self.gate_up(_normed(self.mlp_norm, hidden_states)).chunk(2, -1)
        output: torch.Tensor = hidden_states + self.down(self.act(gate).mul_(up))
        return output


def _joined(layer: Any, name: str, part: str, *projections: str) -> PackedLinear:
    layers = [getattr(getattr(layer, part), projection) for projection in projections]
    return PackedLinear(layers, [f"{name}.{part}.{projection}" for projection in projections])


def _normed(norm: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    return rms_norm(hidden_states, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _rotated(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embeddings: `sin` and its negative take turns by halves of a head."""
    half = sin.shape[-1] // 2
    signed = torch.cat((-sin[..., :half], sin[..., half:]), -1)
    return torch.addcmul(states * cos.unsqueeze(1), states.roll(half, -1), signed.unsqueeze(1))
