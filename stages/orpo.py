"""TRL's experimental ORPO trainer (Hong et al. 2024, arXiv:2403.07691) on rows that are tokenised already."""

import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # we know; the version of TRL is pinned
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

from stages import ranks
from stages.shared_prefix import IGNORED

__all__ = ["ORPOConfig", "Pair", "TokenisedORPOTrainer", "orpo_row"]

Pair = Mapping[str, list[int]]
"""Token ids of one pair: `prompt_ids`, `chosen_ids`, `rejected_ids`."""


class TokenisedORPOTrainer(ORPOTrainer):  # type: ignore[misc]
    """ORPO on rows made by `orpo_row`.

    Attributes:
        together: How many processes have a micro-batch between them (see `conf.processes`).
    """

    together = 1

    def concatenated_forward(self, model: Any, batch: Mapping[str, Any]) -> tuple[Any, ...]:
        """Weigh the likelihood by its share of the micro-batch's tokens: the processes' mean is then that over tokens.

        It is a mean over the tokens of all chosen sequences; the other parts of the loss are means over pairs.
        """
        found: tuple[Any, ...] = super().concatenated_forward(model, batch)
        if self.together == 1:
            return found
        tokens = int(batch["chosen_attention_mask"][:, 1:].sum())
        first = ranks.number() // self.together * self.together
        of_all = ranks.gathered(tokens)[first : first + self.together]
        return (*found[:4], found[4] * (tokens * self.together / sum(of_all)), *found[5:])

    def tokenize_row(self, feature: Mapping[str, Any], model: Any = None) -> dict[str, Any]:
        """Leave the row as it is."""
        return {}


def orpo_row(pair: Pair) -> dict[str, list[int]]:
    """A pair in the form that `ORPOTrainer.tokenize_row` would give it."""
    prompt = pair["prompt_ids"]
    row = {"prompt_input_ids": prompt, "prompt_attention_mask": [1] * len(prompt)}
    for name in ("chosen", "rejected"):
        reply = pair[f"{name}_ids"]
        row[f"{name}_input_ids"] = prompt + reply
        row[f"{name}_attention_mask"] = [1] * (len(prompt) + len(reply))
        row[f"{name}_labels"] = [IGNORED] * len(prompt) + reply
    return row
