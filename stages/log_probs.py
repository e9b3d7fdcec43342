"""Log-probabilities of completions, computed over the tree of their prefixes (`stages.prefix_tree`)."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from stages.prefix_tree import ATTENTION, prefix_tree

TOLERANCE = {torch.float32: 1e-4}
"""Largest mean difference to the plain computation that is taken for rounding; in smaller types it is larger."""


def enable(model: PreTrainedModel) -> None:
    """Make a model understand the arguments of `completion_log_probs`."""
    model.set_attn_implementation(ATTENTION)
    model.base_model.register_forward_hook(_keep_predicting, with_kwargs=True)


def _keep_predicting(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Leave to the head what predicts a token: a node once for every token that follows it."""
    if kwargs.get("predicting") is not None:
        output.last_hidden_state = output.last_hidden_state[:, kwargs["predicting"]]
    return output


def completion_log_probs(
    model: torch.nn.Module,
    prompts: Sequence[list[int]],
    completions: Sequence[list[int]],
    width: int,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probability of every token of the completions, and the entropy of its distribution in nats.

    Args:
        model: An enabled model with TRL's fused head, or an adapter around one.
        prompts: Token ids, none empty.
        completions: Token ids, as many.
        width: Length of the longest completion, or more.
        device: Where the model is.

    Returns:
        Both (completions, width), and 0 after a completion's end.
    """
    # A completion's last token is predicted and predicts nothing, so it is no part of the tree.
    sequences = [[*prompt, *completion[:-1]] for prompt, completion in zip(prompts, completions, strict=True)]
    tree = prefix_tree(sequences, device)
    steps: dict[tuple[int, int], int] = {}  # from a node to a token; its place among all
    places = torch.full((len(sequences), width), -1)
    for row, (path, prompt, completion) in enumerate(zip(tree.paths, prompts, completions, strict=True)):
        taken = zip(path[len(prompt) - 1 :], completion, strict=False)
        places[row, : len(completion)] = torch.tensor([steps.setdefault(step, len(steps)) for step in taken])
    output = model(
        input_ids=tree.ids[None],
        position_ids=tree.positions[None],
        attention_mask=torch.ones(1, 1, 1, 1, device=device),  # of four dimensions: taken as it is, so none is made
        tree=tree,
        predicting=torch.tensor([node for node, _ in steps], dtype=torch.long, device=device),
        shift_labels=torch.tensor([[token for _, token in steps]], dtype=torch.long, device=device),
        fused_lm_head=True,
    )
    padded = [torch.cat([values[0], values.new_zeros(1)]) for values in (output.log_probs, output.entropy)]
    places = places.to(device)
    return padded[0][places], padded[1][places]
