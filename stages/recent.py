"""The model that a process loaded last, as it was then, because the next step of a pipeline mostly needs the same.

Loading and folding take longer than a step of training on a small model. On a CPU, and while it takes a small part of
the memory there is, a copy is kept aside; whoever asks gets a copy of that, so nobody's changes reach anybody else.
"""

import copy
from typing import Any

from transformers import PreTrainedModel

from stages.contract import Hardware, ModelRef
from stages.hardware import memory

SHARE = 16
"""A model may take this part of the machine's memory, and no more, to be remembered."""

Kept = tuple[PreTrainedModel, dict[str, Any] | None]

_latest: list[tuple[ModelRef, Hardware, Kept]] = []


def remember(ref: ModelRef, hardware: Hardware, model: PreTrainedModel, receipt: dict[str, Any] | None) -> None:
    """Keep a copy of a model in place of the last one, if it is worth it."""
    forget()
    if hardware.device == "cpu" and model.get_memory_footprint() * SHARE <= memory():
        _latest.append((ref, hardware, (copy.deepcopy(model), receipt)))


def recall(ref: ModelRef, hardware: Hardware) -> Kept | None:
    """A copy of the model, and its receipt, if it was the last one."""
    for known, where, (model, receipt) in _latest:
        if (known, where) == (ref, hardware):
            return copy.deepcopy(model), copy.deepcopy(receipt)
    return None


def forget() -> None:
    """Let go of what is kept."""
    _latest.clear()
