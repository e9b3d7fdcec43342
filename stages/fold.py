"""The fold: base weights and adapters, in order, become plain weights.

Each tensor is accumulated in float32 over all adapters and rounded once, so that a long chain loses no more than a
short one. Every fold proves itself against the unmerged adapter; the proof is its receipt (`stages.receipt`).
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors import safe_open
from transformers import PreTrainedModel

from stages import recent
from stages.adapters import WEIGHTS_FILE, FoldError, check_foldable, check_lineage
from stages.contract import Adapter, Hardware, ModelRef
from stages.models import load_base, unchanged_random_state
from stages.receipt import Change, Probe, make_receipt, probe_ids, probe_logits
from stages.rounding import rounding_noise, stochastic_round


@dataclass(frozen=True)
class Folded:
    """A folded model, and what the fold proves about itself (None when there was nothing to fold)."""

    model: PreTrainedModel
    receipt: dict[str, Any] | None


@torch.no_grad()
def load_folded(ref: ModelRef, hardware: Hardware) -> Folded:
    """Load a model, fold its adapters, and check the result.

    What a process folded last is remembered (see `stages.recent`): the steps of a pipeline start where others ended.
    A fold is of full precision whatever the hardware says of 4 bits (`stages.quantise`).

    Raises:
        FoldError: An adapter is missing, has changed, belongs on other weights or cannot be folded; the last adapter
            changes nothing; or the folded model does not answer like the model with the adapter beside it.
        UserError: The base model cannot be found, reached or used.
    """
    check_chain(ref)
    hardware = replace(hardware, load_in_4bit=False)
    known = recent.recall(ref, hardware)
    if known is not None:
        return Folded(*known)
    folded = _fold_last(ref, hardware) if ref.adapters else Folded(load_base(ref, hardware), None)
    recent.remember(ref, hardware, folded.model, folded.receipt)
    return folded


def _fold_last(ref: ModelRef, hardware: Hardware) -> Folded:
    """Fold the last adapter on the fold of those before it, and compare with the model that has it beside it.

    In float32, where sums are rounded to what they are anyway, that is the fold of all. In smaller types all have to be
    added up before anything is rounded, so the base is loaded again; at most one copy is held at a time.
    """
    *before, last = ref.adapters
    ids = probe_ids(ref)
    adapted = attach(_start(replace(ref, adapters=tuple(before)), hardware), [last])
    with adapted.disable_adapter():
        base_logits = probe_logits(adapted, ids)
    adapter_logits = probe_logits(adapted, ids)
    if before and ref.dtype != "float32":
        del adapted
        adapted = attach(load_base(ref, hardware), ref.adapters)
    changes = fold_adapters(adapted, ref)
    folded = detach(adapted)
    probe = Probe(base=base_logits, adapter=adapter_logits, folded=probe_logits(folded, ids))
    return Folded(folded, make_receipt(ref, changes, probe))


def _start(ref: ModelRef, hardware: Hardware) -> PreTrainedModel:
    """Base and adapters, folded, without a receipt: every adapter had its own when it was the last."""
    known = recent.recall(ref, hardware)
    if known is not None:
        return known[0]
    model = load_base(ref, hardware)
    if not ref.adapters:
        return model
    adapted = attach(model, ref.adapters)
    fold_adapters(adapted, ref)
    return detach(adapted)


def check_chain(ref: ModelRef) -> None:
    """Check every adapter of a model against the weights it will be folded on.

    Raises:
        FoldError: One is missing, has changed, belongs on other weights or cannot be folded.
    """
    start = ref.base
    for adapter in ref.adapters:
        check_lineage(adapter, start)
        check_foldable(adapter)
        start = start.with_adapter(adapter)


def attach(model: PreTrainedModel, adapters: Sequence[Adapter]) -> PeftModel:
    """Put adapters beside a model through peft, named 0, 1, ...; the first is the active one.

    Raises:
        FoldError: An adapter does not fit the model.
    """
    adapted: Any = None
    for index, adapter in enumerate(adapters):
        try:
            adapted = _attach_one(adapted or model, adapter, str(index))
        except (ValueError, RuntimeError, KeyError) as error:
            raise FoldError(f"the adapter {adapter.path} does not fit the model: {error}") from error
        _check_complete(adapted, adapter, str(index))
    return adapted.eval()


def _attach_one(model: Any, adapter: Adapter, name: str) -> PeftModel:
    """Put one more adapter beside a model, in float32, whatever the type of the model.

    peft first makes a random adapter, then loads over it. Its `low_cpu_mem_usage` would avoid that, but rounds the
    loaded weights to the type of the model; so torch's generator is kept from moving instead.
    """
    with unchanged_random_state(model.device), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # What peft only warns of, we refuse.
        if isinstance(model, PeftModel):
            model.load_adapter(adapter.path, adapter_name=name)
            return model
        return PeftModel.from_pretrained(model, adapter.path, adapter_name=name)


def detach(adapted: PeftModel) -> PreTrainedModel:
    """The model beneath its adapters, without any trace of them: peft would count them with the next stage's own."""
    model: PreTrainedModel = adapted.unload()
    if hasattr(model, "peft_config"):
        del model.peft_config
    return model


def _check_complete(adapted: PeftModel, adapter: Adapter, name: str) -> None:
    with safe_open(adapter.path / WEIGHTS_FILE, "pt") as file:
        stored = len(file.keys())
    used = 2 * sum(_has(layer, name) for _, layer in lora_layers(adapted))
    if stored != used:
        raise FoldError(f"the adapter {adapter.path} does not fit the model: it has {stored} tensors, not {used}")


def fold_adapters(adapted: PeftModel, ref: ModelRef) -> list[Change]:
    """Fold the attached adapters into the weights beneath them, in place.

    Returns:
        For every adapted tensor, what the last adapter did to it.

    Raises:
        FoldError: A weight is used by two modules, or becomes infinite or not a number.
    """
    uses = _count_uses(adapted)
    changes = []
    for name, layer in lora_layers(adapted):
        if uses[layer.get_base_layer().weight.data_ptr()] > 1:
            raise FoldError(f"{name} shares its weight with another module (tied embeddings): do not adapt it")
        changes.append(fold_layer(layer, list(adapted.peft_config), f"{name}.weight", ref))
    return changes


def fold_layer(layer: LoraLayer, adapters: Sequence[str], name: str, ref: ModelRef) -> Change:
    """Fold one weight in place: the sum over all adapters in float32, rounded once to the weight's own type.

    Args:
        layer: The adapted layer.
        adapters: Names of the attached adapters, in order.
        name: The tensor's name in the plain model.
        ref: The model that is folded.

    Raises:
        FoldError: The result is infinite or not a number.
    """
    weight: torch.Tensor = layer.get_base_layer().weight
    noise = None if weight.dtype == torch.float32 else rounding_noise(ref.sha256, name, weight.shape)
    before = weight.detach().float()
    for adapter in adapters[:-1]:
        before = before + adapter_delta(layer, adapter)
    update = adapter_delta(layer, adapters[-1])
    folded = _round(before + update, weight.dtype, noise)
    if not torch.isfinite(folded).all():
        raise FoldError(f"{name} would hold numbers that {ref.dtype} cannot: infinite or not a number")
    change = Change.of(name, _round(before, weight.dtype, noise), folded, update)
    weight.copy_(folded)
    return change


def adapter_delta(layer: LoraLayer, adapter: str) -> torch.Tensor:
    """What an adapter adds to a layer's weight, in float32: scaled B @ A as peft has it, or zero where it is absent."""
    if not _has(layer, adapter):
        return torch.zeros((), device=layer.get_base_layer().weight.device)
    delta: torch.Tensor = layer.get_delta_weight(adapter).float()
    return delta


def _round(values: torch.Tensor, dtype: torch.dtype, noise: torch.Tensor | None) -> torch.Tensor:
    return values if noise is None else stochastic_round(values, dtype, noise)


def _has(layer: LoraLayer, adapter: str) -> bool:
    return adapter in layer.lora_A or adapter in layer.lora_embedding_A


def lora_layers(adapted: PeftModel) -> Iterator[tuple[str, LoraLayer]]:
    """The adapted layers with their names in the plain model."""
    for name, module in adapted.base_model.model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module


def _count_uses(adapted: PeftModel) -> dict[int, int]:
    """By memory address, how many modules use a weight."""
    uses: dict[int, int] = {}
    for module in adapted.modules():
        weight = module._parameters.get("weight")
        if weight is not None:
            uses[weight.data_ptr()] = uses.get(weight.data_ptr(), 0) + 1
    return uses
