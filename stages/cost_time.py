"""Time on paper: floating-point operations and bytes of an optimiser step, over what a GPU does at an assumed share.

Operations: two per weight and token forward (Kaplan et al. 2020, arXiv:2001.08361, section 2.1), two more backward for
the gradient of the activations; the other two of full training are for gradients of weights, frozen here. Attention
adds 4 x layers x heads x head_dim per pair of tokens forward (Chowdhery et al. 2022, arXiv:2204.02311, appendix B).
Sampling reads all weights and the cache for every token, and starts every kernel of every layer; the slowest counts.
"""

from dataclasses import dataclass

from conf.training import ReinforceConfig, TrainingConfig
from stages.contract import Hardware
from stages.cost import BYTES, Batch, adapter_parameters
from stages.shapes import ModelShape

UTILISATION = 0.4
"""Share of the peak that training gets; 0.46 is a good value for large models (arXiv:2204.02311, table 3)."""

BANDWIDTH_SHARE = 0.7
"""Share of the memory's bandwidth that a decoding step gets."""

CALLS, CALL_SECONDS = 100, 8e-6
"""Kernels that a decoder layer with an adapter beside its weights starts, and what starting one costs."""

SCALING = 0.95
"""Share of the time that stays useful when several GPUs wait for the slowest and add up their gradients."""


@dataclass(frozen=True)
class Gpu:
    """What its maker states: operations per second in bfloat16 without sparsity, bytes per second, bytes."""

    name: str
    operations: float
    bandwidth: float
    memory: int


A100 = Gpu("A100 80GB SXM", 312e12, 2.039e12, 80 * 10**9)
"""NVIDIA A100 datasheet, 2021."""


def training_operations(shape: ModelShape, settings: TrainingConfig, batch: Batch) -> float:
    """Of one micro-batch, forward and backward; and forward again with gradient checkpointing."""
    passes = 3 if settings.gradient_checkpointing else 2
    adapter = 6 * adapter_parameters(shape, settings.lora) * batch.tokens
    return passes * _forward(shape, batch) + adapter


def _forward(shape: ModelShape, batch: Batch) -> float:
    products = 2 * (batch.tokens * shape.linear + batch.predicted * shape.head)
    pairs = batch.tokens * batch.longest / 2  # a token attends to those before it
    return products + 4 * shape.layers * shape.heads * shape.head_dim * pairs


def sampling_seconds(shape: ModelShape, hardware: Hardware, batch: Batch, gpu: Gpu) -> float:
    """Of all completions of an optimiser step: the prompts at once, then token after token."""
    size = BYTES[hardware.dtype]
    weights = shape.parameters * size
    cache = 2 * shape.layers * shape.key_heads * shape.head_dim * size * (batch.prompt + batch.new_tokens / 2)
    read = (weights + batch.completions * cache) / (gpu.bandwidth * BANDWIDTH_SHARE)
    computed = 2 * batch.completions * (shape.linear + shape.head) / (gpu.operations * UTILISATION)
    started = shape.layers * CALLS * CALL_SECONDS
    return batch.new_tokens * max(read, computed, started)


def step_seconds(shape: ModelShape, hardware: Hardware, settings: TrainingConfig, batch: Batch, gpu: Gpu) -> float:
    """Of one optimiser step on one GPU; the reference of `reinforce` is one more pass forward."""
    speed = gpu.operations * UTILISATION
    seconds = settings.grad_accum * training_operations(shape, settings, batch) / speed
    if isinstance(settings, ReinforceConfig):
        reference = settings.grad_accum * _forward(shape, batch) / speed if settings.beta else 0.0
        seconds += reference + sampling_seconds(shape, hardware, batch, gpu)
    return seconds
