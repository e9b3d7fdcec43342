"""Cost on paper: how much memory a training step needs at its peak, by formulas, without torch and without weights.

What is counted is what is alive at the worst moment of a step: the weights and their copies, the adapter with its
gradients and moments, and the larger of two phases: training (saved activations, logits) or sampling (the cache of keys
and values, distributions). The method is that of Korthikanti et al. 2022 (arXiv:2205.05198): go through a layer and add
up what its backward pass needs. Counted here for a frozen base with LoRA, as torch and peft save it;
`benchmarks/memory.py` says how far off that is. Prefixes that sequences share beyond their prompt make it less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from conf.training import LoraConfig, TrainingConfig
from stages.contract import Hardware
from stages.hardware import memory as host_memory
from stages.shapes import ModelShape

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of one element, by number type."""

NF4_BYTES = 0.516
"""Of one weight in 4 bits: 4.127 bits with double quantisation (QLoRA, arXiv:2305.14314, section 3)."""

ADAPTER_BYTES = 16
"""Per weight of an adapter, always in float32: itself, its gradient, and two moments of AdamW (arXiv:1711.05101)."""

LOGITS = 2**23
"""Logits in memory at a time where the head is asked in parts (`stages.token_head.ELEMENTS`)."""

LOGIT_COPIES = 4
"""Of these, in float32: outputs, logits, log-probabilities, and one more for a statistic."""

TILE = (4096, 32768)
"""Tokens and vocabulary for which TRL's own head has logits in memory (`trl.kernels.chunked_logprob`)."""

TILE_COPIES = {"forward": 5, "backward": 9}
"""Of these, in float32, without Triton; with it there is one, in the type of the weights."""

COMPARED = 12
"""Before it trains, a model answers 8 sequences of 1.5 times the longest prompt in both ways (`shared_prefix`)."""

ROOM = 64
"""Tokens for which the cache makes room at a time (`stages.sampling.ROOM`)."""

BLOCKS = {"cpu": 128, "cuda": 1024, "mps": 1024}
"""Nodes that attend together over a prefix tree (`stages.prefix_tree`)."""

PROCESS = {"cpu": 800 * 2**20, "cuda": 600 * 2**20, "mps": 600 * 2**20}
"""Beside all tensors: Python with torch, transformers, TRL, Prefect and MLflow (measured), or a CUDA context (not)."""

SHARE = 16
"""A model of at most this part of the host's memory is kept for the next step (`stages.recent.SHARE`)."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One micro-batch, in tokens; from above.

    Attributes:
        tokens: Computed with gradients, padding included where there is any.
        longest: Of the longest sequence.
        predicted: Whose log-probabilities are asked for.
        tree: Whether the sequences are computed as one tree of prefixes, else as a padded batch.
        whole_logits: Whether the logits of all tokens are in memory at once (TRL's ORPO).
        compared: The longest prompt with which the two ways to compute are compared; 0 where they are not.
        completions: Sampled at once, for the whole optimiser step.
        new_tokens: Of the longest completion.
        prompt: Of the longest prompt to sample from.
    """

    tokens: int
    longest: int
    predicted: int
    tree: bool = True
    whole_logits: bool = False
    compared: int = 0
    completions: int = 0
    new_tokens: int = 0
    prompt: int = 0


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes at the peak, by what they hold.

    Attributes:
        process: What is there without any model.
        weights: Of the base, as it is trained on.
        copies: Of weights: the one that is remembered for the next step, the one that is sampled from.
        adapter: With gradients and optimiser.
        activations: Saved for the backward pass.
        logits: Of the tokens that are trained on.
        cache: Keys and values while completions are sampled, and their distributions.
        comparison: Of the two ways to compute, before training begins.
        fold: Of the folded model after training, in the place of the trained one, what it needs more: full precision
            where it was trained on in 4 bits; and twice on a CPU, where its weights are put into the order in which
            they are read.
    """

    process: int
    weights: int
    copies: int
    adapter: int
    activations: int
    logits: int
    cache: int
    comparison: int
    fold: int

    @property
    def peak(self) -> int:
        """All that is alive at the worst moment: the phases of a step take turns."""
        standing = self.process + self.weights + self.copies + self.adapter
        return standing + max(self.activations + self.logits, self.cache, self.comparison, self.fold)

    def parts(self) -> dict[str, int]:
        """By name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def step_memory(
    shape: ModelShape, hardware: Hardware, settings: TrainingConfig, batch: Batch, shards: int = 1
) -> Memory:
    """The memory of a training step on one device.

    Args:
        shape: Of the model.
        hardware: Where it trains.
        settings: Of its stage.
        batch: What one micro-batch is.
        shards: Devices over which the weights are spread (FSDP); plain data parallelism has all weights on each.
    """
    size = BYTES[hardware.dtype]
    full = shape.parameters * size // shards
    weights = full - int(shape.linear * (size - NF4_BYTES)) // shards if hardware.load_in_4bit else full
    return Memory(
        process=PROCESS[hardware.device],
        weights=weights,
        copies=_copies(shape, hardware, batch, full),
        adapter=ADAPTER_BYTES * adapter_parameters(shape, settings.lora) // shards,
        activations=_activations(shape, hardware, settings, batch),
        logits=_logits(shape, hardware, batch),
        cache=_cache(shape, size, batch) if batch.completions else 0,
        comparison=_tile(shape, hardware, COMPARED * batch.compared, "forward"),
        fold=full - weights + (full if hardware.device == "cpu" and size == 4 else 0),
    )


def adapter_parameters(shape: ModelShape, lora: LoraConfig) -> int:
    """Weights of an adapter: r x (inputs + outputs) for every adapted matrix (LoRA, arXiv:2106.09685)."""
    return lora.r * shape.layers * sum(map(sum, shape.adapted(lora.target_modules)))


def _copies(shape: ModelShape, hardware: Hardware, batch: Batch, weights: int) -> int:
    """On a CPU a small model is remembered; in float32 completions come from a folded copy, packed on a CPU."""
    remembered = weights if hardware.device == "cpu" and weights * SHARE <= host_memory() else 0
    folded = 0
    if batch.completions and batch.tree and hardware.dtype == "float32" and not hardware.load_in_4bit:
        folded = 4 * (shape.linear + (shape.head if hardware.device == "cpu" else 0))
    return remembered + folded


def _activations(shape: ModelShape, hardware: Hardware, settings: TrainingConfig, batch: Batch) -> int:
    """Saved by all layers; or, with gradient checkpointing, the input of each and all that one of them saves.

    One layer more for what the backward pass itself holds.
    """
    layer = batch.tokens * layer_activations(shape, hardware, settings.lora, batch)
    if settings.gradient_checkpointing:
        return batch.tokens * shape.layers * shape.hidden * BYTES[hardware.dtype] + 2 * layer
    return (shape.layers + 1) * layer


def layer_activations(shape: ModelShape, hardware: Hardware, lora: LoraConfig, batch: Batch) -> int:
    """Bytes per token that one decoder layer saves for its backward pass; its own weights are frozen.

    With h hidden, f intermediate, q = heads x head_dim, in elements:

    - normalisations: their inputs, h each, in float32;
    - attention: queries and its result (q each), keys and values (see `_keys_values`), the mask of the block;
    - gated feed-forward: gate, its activation, and what goes up (f each);
    - adapters: their inputs and r intermediate values. In float32 adapters of one input save it once, and that of the
      output projection saves the result of attention, where that is not put together from blocks; under autocast to
      16 bits each saves a copy of its own. A frozen linear layer saves nothing.
    """
    size = BYTES[hardware.dtype]
    queries = shape.heads * shape.head_dim
    adapted = list(shape.adapted(lora.target_modules))
    inputs = sum(wide for wide, _ in adapted)
    attention = 2 * queries + _keys_values(shape, hardware, batch)
    if size == 4:
        inputs = min(inputs, 2 * shape.hidden + queries + shape.intermediate)
        attention -= 0 if batch.tree else queries
    if lora.dropout:
        inputs = sum(wide for wide, _ in adapted)
    elements = attention + _seen(hardware, batch) + 3 * shape.intermediate + inputs + lora.r * len(adapted)
    mask = 4 if hardware.device == "cpu" else 1  # bytes that say whether dropout has kept an element
    return int(size * elements + 4 * shape.norms * shape.hidden + (mask * inputs if lora.dropout else 0))


def _keys_values(shape: ModelShape, hardware: Hardware, batch: Batch) -> float:
    """Elements per token: where query heads share keys and values, these are repeated, over a tree for every block."""
    if not 1 < shape.key_heads < shape.heads:  # a single one is repeated without a copy
        return 2 * shape.key_heads * shape.head_dim
    nodes = min(batch.tokens, BLOCKS[hardware.device])
    return 2 * shape.heads * shape.head_dim * (_seen(hardware, batch) / nodes if batch.tree else 1)


def _seen(hardware: Hardware, batch: Batch) -> float:
    """Keys that a block attends to: its own, and those before it in the sequence, anywhere in which it begins.

    Where completions are trained on, that is mostly behind their prompt. In a padded batch, the keys of a sequence.
    """
    if not batch.tree:
        return batch.longest
    before = batch.longest if batch.completions else batch.longest / 2
    return min(batch.tokens, BLOCKS[hardware.device] + before)


def _logits(shape: ModelShape, hardware: Hardware, batch: Batch) -> int:
    """The head in parts, and per state that predicts its input and the gradient that is kept for it."""
    if batch.whole_logits:
        return 3 * 4 * batch.tokens * shape.vocabulary
    if not batch.tree:
        asked = batch.tokens if hardware.device == "cpu" else batch.predicted
        return _tile(shape, hardware, asked, "backward") + 2 * 4 * asked * shape.hidden
    together = min(LOGITS, batch.predicted * shape.vocabulary)
    return LOGIT_COPIES * 4 * together + 2 * BYTES[hardware.dtype] * batch.predicted * shape.hidden


def _tile(shape: ModelShape, hardware: Hardware, tokens: int, way: str) -> int:
    """What TRL's own head holds of logits at a time."""
    logits = min(tokens, TILE[0]) * min(shape.vocabulary, TILE[1])
    return logits * (BYTES[hardware.dtype] if hardware.device == "cuda" else 4 * TILE_COPIES[way])


def _cache(shape: ModelShape, size: int, batch: Batch) -> int:
    """Keys and values of all completions, none of which agree; and their distributions over the vocabulary."""
    tokens = batch.prompt + -(-batch.new_tokens // ROOM) * ROOM
    keys_values = 2 * shape.layers * shape.key_heads * shape.head_dim * size
    return batch.completions * (tokens * keys_values + LOGIT_COPIES * 4 * shape.vocabulary)


def largest(memories: Sequence[Memory]) -> Memory | None:
    """The one with the highest peak."""
    return max(memories, key=lambda memory: memory.peak, default=None)
