"""Groups of completions: several of one prompt, which GRPO compares with each other and which share their prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from trl.trainer.utils import split_tensor_dict


@dataclass(frozen=True)
class Group:
    """The completions of one prompt.

    Attributes:
        completions: Token ids.
        log_probs: Per completion the log-probabilities that its tokens were sampled with; None where nobody asks.
    """

    completions: list[list[int]]
    log_probs: list[list[float]] | None

    @property
    def tokens(self) -> int:
        """How many were sampled."""
        return sum(map(len, self.completions))


def grouped(completions: Sequence[list[int]], log_probs: Sequence[list[float]] | None, size: int) -> list[Group]:
    """The groups of completions that come one group after the other."""
    parts = [slice(start, start + size) for start in range(0, len(completions), size)]
    return [Group(list(completions[part]), None if log_probs is None else list(log_probs[part])) for part in parts]


def joined(groups: Sequence[Group]) -> tuple[list[list[int]], list[list[float]] | None]:
    """The completions of groups one after the other, and their log-probabilities if there are any."""
    completions = [completion for group in groups for completion in group.completions]
    if any(group.log_probs is None for group in groups):
        return completions, None
    return completions, [each for group in groups for each in group.log_probs or []]


def by_group(micro_batches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The completions of some micro-batches (dicts of tensors) in as many, sorted by `group`."""
    first = micro_batches[0]
    order = torch.cat([batch["group"] for batch in micro_batches]).argsort(stable=True)
    sorted_by_group = {
        name: torch.cat([batch[name] for batch in micro_batches])[order.to(value.device)]
        for name, value in first.items()
        if isinstance(value, torch.Tensor) and value.dim() > 0
    }
    return [{**first, **batch} for batch in split_tensor_dict(sorted_by_group, len(micro_batches))]
