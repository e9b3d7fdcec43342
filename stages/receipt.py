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
from stages.models import load_tokenizer

PROBE = "Question: What is 17 + 25? Name one city, one colour and one animal. Answer:"

LOGITS_TOLERANCE = {"float32": 1e-5, "bfloat16": 2.0**-6, "float16": 2.0**-9}
"""Relative error of logits that comes from the number type alone: two steps of a 16-bit type, and for float32 what
another order of its sums costs (1e-6 to 2e-6 seen)."""

KEPT_TOLERANCE = 0.1
"""How far the share of the update that the weights show may be from 1. (Five steps at 1e-5 on SmolLM2-135M in bfloat16:
0.9995 with stochastic rounding, 0.03 with rounding to nearest.)"""


@dataclass(frozen=True)
class Change:
    """What the last adapter did to one tensor.

    Attributes:
        name: The tensor.
        relative: Frobenius norm of the change over that of the weights before; 0 when no element changed.
        aligned: Inner product of the change with the adapter's update.
        expected: Inner product of the update with itself: what `aligned` is when the change is the update.
    """

    name: str
    relative: float
    aligned: float
    expected: float

    @classmethod
    def of(cls, name: str, before: torch.Tensor, after: torch.Tensor, update: torch.Tensor) -> "Change":
        """Compare two states of a tensor, and with the update that was to lead from one to the other."""
        before = before.float()
        change = after.float() - before
        relative = torch.linalg.vector_norm(change) / torch.linalg.vector_norm(before).clamp_min(1e-30)
        aligned, expected = (change * update).sum(dtype=torch.float64), (update * update).sum(dtype=torch.float64)
        return cls(name, float(relative), float(aligned), float(expected))


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
    def mean_effect(self) -> float:
        """Mean |adapter - base|."""
        return float((self.adapter - self.base).abs().mean())

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
        """Largest gap of a right fold: a tenth of the effect, or what the number type costs, whichever is more."""
        return max(self.effect / 10, LOGITS_TOLERANCE[dtype] * float(self.adapter.abs().max()))


def probe_ids(ref: ModelRef) -> list[int]:
    """Token ids of the probe prompt."""
    ids: list[int] = load_tokenizer(ref)(PROBE)["input_ids"]
    return ids


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
    """Let a model compute in float32, one module's weights at a time: no second copy of the model exists.

    Layers in 4 bits compute as they do in training.
    """
    kept: dict[nn.Module, dict[str, torch.Tensor]] = {}

    def widen(module: nn.Module, _: Any) -> None:
        weights = {name: each for name, each in module.named_parameters(recurse=False) if each.is_floating_point()}
        kept[module] = {name: weight.data for name, weight in weights.items()}
        for weight in weights.values():
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

    Two checks that fail in different ways. *Logits*: the folded model must answer like the one with the adapter beside
    it, to a tenth of the adapter's effect, or to what the number type costs where that is more (a 16-bit fold of a
    tiny update cannot do better). *Weights*: over all adapted tensors together, the change must show the update
    once, neither lost in rounding nor doubled; this holds for updates of any size, because rounding errors average
    out over millions of weights.

    Args:
        ref: The folded model.
        changes: What the last adapter did to every adapted tensor.
        probe: Logits before, with the adapter beside, and after.

    Raises:
        FoldError: The last adapter changed nothing, or one of the checks fails.
    """
    path = ref.adapters[-1].path
    changed = [change for change in changes if change.relative > 0]
    if not changed:
        raise FoldError(f"the adapter {path} changes nothing: none of its {len(changes)} tensors differ after it")
    kept = sum(change.aligned for change in changes) / sum(change.expected for change in changes)
    if not abs(kept - 1) <= KEPT_TOLERANCE:
        raise FoldError(f"the fold of {path} lost its update: the weights show {kept:.0%} of it in {ref.dtype}")
    allowed = probe.allowed(ref.dtype)
    if not probe.gap <= allowed:  # also when it is not a number
        raise FoldError(
            f"the fold of {path} does not answer like the adapter: on the probe the largest logit difference is "
            f"{probe.gap:.3g} ({allowed:.3g} allowed, the adapter's own effect is {probe.effect:.3g})"
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
            "update_kept": kept,
        },
        "logits": {
            "folded_vs_adapter": probe.gap,
            "adapter_vs_base": probe.effect,
            "mean_adapter_vs_base": probe.mean_effect,
            "allowed": allowed,
            "effect_kept": probe.kept,
        },
    }
