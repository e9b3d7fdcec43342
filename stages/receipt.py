"""What a fold proves about itself: the hashes it was made of, what it changed, and that it answers as it should."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stages.adapters import FoldError
from stages.contract import FOLD_VERSION, ModelRef

PROBE = "Question: What is 17 + 25? Name one city, one colour and one animal. Answer:"

TOLERANCE = {"float32": 1e-5, "bfloat16": 2**-8, "float16": 2**-11}
"""Relative error of logits that comes from the number type alone: in 16 bits half a step of the weights."""


@dataclass(frozen=True)
class Change:
    """What the last adapter did to one tensor.

    Attributes:
        name: The tensor.
        relative: Frobenius norm of the change over that of the weights before; 0 when no element changed.
    """

    name: str
    relative: float

    @classmethod
    def of(cls, name: str, before: torch.Tensor, after: torch.Tensor) -> "Change":
        """Compare two states of a tensor."""
        difference = torch.linalg.vector_norm(after.float() - before.float())
        return cls(name, float(difference / torch.linalg.vector_norm(before.float()).clamp_min(1e-30)))


@dataclass(frozen=True)
class Probe:
    """Logits of the probe prompt, each [tokens, vocabulary] in float32.

    Attributes:
        base: Everything before the last adapter, folded.
        adapter: The same with the last adapter beside it, unmerged, through peft.
        folded: All adapters folded.
    """

    base: torch.Tensor
    adapter: torch.Tensor
    folded: torch.Tensor

    @property
    def effect(self) -> float:
        """Largest |adapter - base|."""
        return float((self.adapter - self.base).abs().max())

    @property
    def gap(self) -> float:
        """Largest |folded - adapter|."""
        return float((self.folded - self.adapter).abs().max())

    @property
    def kept(self) -> float:
        """Share of the adapter's effect that the folded model shows: the slope of folded - base over adapter - base."""
        effect = (self.adapter - self.base).flatten().double()
        return float((self.folded - self.base).flatten().double() @ effect / (effect @ effect).clamp_min(1e-300))

    def allowed(self, dtype: str) -> float:
        """Largest gap of a right fold: a tenth of the effect, or the rounding of logits of this size and type."""
        return max(self.effect / 10, TOLERANCE[dtype] * float(self.adapter.abs().max()))

    def shows_effect(self, dtype: str) -> bool:
        """Whether a 16-bit fold, whose rounding hides small effects in single logits, keeps the effect on the whole."""
        return dtype != "float32" and abs(self.kept - 1) <= 0.5


@torch.no_grad()
def probe_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Logits of the probe prompt, [tokens, vocabulary], computed in float32 whatever the type of the weights.

    In bfloat16 the rounding of activations alone moves logits as much as a small adapter does.
    """
    with in_float32(model):
        logits: torch.Tensor = model(input_ids=torch.tensor([list(ids)], device=model.device), use_cache=False).logits
    return logits[0].float().cpu()


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Let a model compute in float32, one module's weights at a time: no second copy of the model exists."""
    kept: dict[nn.Module, dict[str, torch.Tensor]] = {}

    def widen(module: nn.Module, _: Any) -> None:
        kept[module] = {name: weight.data for name, weight in module.named_parameters(recurse=False)}
        for weight in module.parameters(recurse=False):
            weight.data = weight.data.float()

    def restore(module: nn.Module, *_: Any) -> None:
        for name, data in kept.pop(module).items():
            module.get_parameter(name).data = data

    owners = [module for module in model.modules() if module._parameters]
    hooks: list[Any] = [module.register_forward_pre_hook(widen) for module in owners]
    hooks += [module.register_forward_hook(restore, always_call=True) for module in owners]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def make_receipt(ref: ModelRef, changes: Sequence[Change], probe: Probe) -> dict[str, Any]:
    """Check a fold and write down what it proves, as plain JSON.

    In float32 the folded logits may differ from the unmerged adapter's by a tenth of the adapter's effect, or by what
    float32 arithmetic itself costs, whichever is more: an adapter whose effect is below that noise cannot be judged by
    its logits, and has its changed tensors as proof. In 16 bits, rounding the weights moves single logits by more than
    a small update does, so there the fold must show the effect as a whole: the slope of (folded - base) over
    (adapter - base) is 1 for a right fold, and near 0 for a lost one.

    Raises:
        FoldError: The last adapter changed nothing, or the folded model does not answer like the one with the adapter
            beside it.
    """
    changed = [change for change in changes if change.relative > 0]
    last = ref.adapters[-1]
    if not changed:
        raise FoldError(f"the adapter {last.path} changes nothing: none of its {len(changes)} tensors differ after it")
    if probe.gap > probe.allowed(ref.dtype) and not probe.shows_effect(ref.dtype):
        raise FoldError(
            f"the fold of {last.path} does not answer like the adapter: on the probe the largest logit difference is "
            f"{probe.gap:.3g} ({probe.allowed(ref.dtype):.3g} allowed), with {probe.kept:.0%} of the adapter's effect"
        )
    return {
        "identity": ref.identity,
        "base": ref.sha256,
        "adapters": [adapter.sha256 for adapter in ref.adapters],
        "dtype": ref.dtype,
        "fold_version": FOLD_VERSION,
        "tensors": {
            "adapted": len(changes),
            "changed": len(changed),
            "largest_relative_change": max(change.relative for change in changed),
            "mean_relative_change": statistics.fmean(change.relative for change in changes),
        },
        "logits": {
            "folded_vs_adapter": probe.gap,
            "adapter_vs_base": probe.effect,
            "effect_kept": probe.kept,
        },
    }
