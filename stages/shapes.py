"""The shape of a model, from its config.json or from what is known of hub models: sizes on paper, without weights.

For decoders of gated layers: Llama, Qwen2, Qwen3, Mistral, Gemma 3 and whatever is built like them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stages import embedded, tiny
from stages.contract import ModelRef
from stages.identity import present_directory


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder, in numbers of elements, under the names of the field.

    Attributes:
        hidden: Size of the residual stream.
        intermediate: Size between the two halves of a feed-forward layer.
        layers: Decoder layers.
        heads: Query heads.
        key_heads: Heads of keys and values (grouped-query attention, arXiv:2305.13245).
        head_dim: Size of one head.
        vocabulary: Tokens.
        tied: Whether the output head is the embedding.
        qkv_bias: Whether queries, keys and values have biases.
        qk_norm: Whether queries and keys are normalised.
        norms: Normalisations of a layer.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    vocabulary: int
    tied: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    norms: int = 2

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The linear layers of one decoder layer: inputs and outputs."""
        queries, keys = self.heads * self.head_dim, self.key_heads * self.head_dim
        return {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    @property
    def linear(self) -> int:
        """Weights of the decoder layers' linear layers."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.matrices.values())

    @property
    def head(self) -> int:
        """Weights of the output head, whether they are the embedding's or not."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, each once."""
        biases = (self.heads + 2 * self.key_heads) * self.head_dim if self.qkv_bias else 0
        small = self.norms * self.hidden + (2 * self.head_dim if self.qk_norm else 0) + biases
        return self.linear + self.layers * small + self.hidden + self.head * (1 if self.tied else 2)

    def adapted(self, modules: list[str]) -> Iterator[tuple[int, int]]:
        """Inputs and outputs of the linear layers of one decoder layer that an adapter is put on."""
        for name, size in self.matrices.items():
            if modules == ["all-linear"] or name in modules:
                yield size


_BUILT_ALIKE = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text", "smollm3")
_SIZES = {
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "vocabulary": "vocab_size",
}
"""Where a config.json has them."""


def read_shape(config: object) -> ModelShape | None:
    """The shape that a config.json states; None for a model that is built otherwise, and where a size is none."""
    if not isinstance(config, Mapping) or config.get("model_type") not in _BUILT_ALIKE:
        return None
    kind = config["model_type"]
    sizes: dict[str, Any] = {field: config.get(name) for field, name in _SIZES.items()}
    if not _are_sizes(sizes.values()):
        return None
    sizes["key_heads"] = config.get("num_key_value_heads") or sizes["heads"]
    sizes["head_dim"] = config.get("head_dim") or sizes["hidden"] // sizes["heads"]
    if not _are_sizes(sizes.values()):
        return None
    return ModelShape(
        **sizes,
        tied=bool(config.get("tie_word_embeddings", kind == "gemma3_text")),
        qkv_bias=kind == "qwen2" or bool(config.get("attention_bias")),
        qk_norm=kind in ("qwen3", "gemma3_text"),
        norms=4 if kind == "gemma3_text" else 2,
    )


def _are_sizes(values: Iterable[object]) -> bool:
    return all(type(value) is int and value > 0 for value in values)


def model_shape(ref: ModelRef) -> ModelShape | None:
    """The shape of a base model: from its directory if that is on this machine, else from what is known of it."""
    directory = present_directory(ref)
    if directory is not None:
        try:
            return read_shape(json.loads((directory / "config.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):  # who loads it reports the damage
            return None
    return KNOWN.get(ref.config.id)


def _known(hidden: int, intermediate: int, layers: int, heads: tuple[int, int, int], **other: Any) -> ModelShape:
    query, key, size = heads
    other |= {"heads": query, "key_heads": key, "head_dim": size}
    return ModelShape(hidden=hidden, intermediate=intermediate, layers=layers, **other)


_SMOLLM, _QWEN, _LARGE_QWEN, _LLAMA, _GEMMA = 49152, 151936, 152064, 128256, 262144
_SMOLLM2_135M = _known(576, 1536, 30, (9, 3, 64), vocabulary=_SMOLLM)

KNOWN: dict[str, ModelShape] = {
    tiny.ID: _known(64, 128, 2, (4, 2, 16), vocabulary=259),
    embedded.ID: _SMOLLM2_135M,
    "HuggingFaceTB/SmolLM2-135M-Instruct": _SMOLLM2_135M,
    "HuggingFaceTB/SmolLM2-360M-Instruct": _known(960, 2560, 32, (15, 5, 64), vocabulary=_SMOLLM),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _known(2048, 8192, 24, (32, 32, 64), vocabulary=_SMOLLM),
    "Qwen/Qwen2.5-0.5B-Instruct": _known(896, 4864, 24, (14, 2, 64), vocabulary=_QWEN, qkv_bias=True),
    "Qwen/Qwen2.5-1.5B-Instruct": _known(1536, 8960, 28, (12, 2, 128), vocabulary=_QWEN, qkv_bias=True),
    "Qwen/Qwen2.5-3B-Instruct": _known(2048, 11008, 36, (16, 2, 128), vocabulary=_QWEN, qkv_bias=True),
    "Qwen/Qwen2.5-7B-Instruct": _known(
        3584, 18944, 28, (28, 4, 128), vocabulary=_LARGE_QWEN, qkv_bias=True, tied=False
    ),
    "Qwen/Qwen3-0.6B": _known(1024, 3072, 28, (16, 8, 128), vocabulary=_QWEN, qk_norm=True),
    "Qwen/Qwen3-1.7B": _known(2048, 6144, 28, (16, 8, 128), vocabulary=_QWEN, qk_norm=True),
    "Qwen/Qwen3-4B": _known(2560, 9728, 36, (32, 8, 128), vocabulary=_QWEN, qk_norm=True),
    "meta-llama/Llama-3.2-1B-Instruct": _known(2048, 8192, 16, (32, 8, 64), vocabulary=_LLAMA),
    "google/gemma-3-1b-it": _known(1152, 6912, 26, (4, 1, 256), vocabulary=_GEMMA, qk_norm=True, norms=4),
}
"""Shapes of the models of conf/model and of Qwen2.5-7B, as their config.json has them."""
