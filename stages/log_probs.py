"""Log-probabilities of completions, computed over the tree of their prefixes (`stages.prefix_tree`)."""

from collections.abc import Sequence
from typing import Any

import torch

from stages.prefix_tree import ATTENTION, prefix_tree

ROUNDING = {torch.float32: 1e-4}
"""Mean difference to the plain computation that is taken for rounding; in smaller types it is `ROUGH_ROUNDING`."""
ROUGH_ROUNDING = 0.05


def enable(model: torch.nn.Module, prompts: Sequence[list[int]], temperature: float) -> str | None:
    """Make a model understand the arguments of `completion_log_probs`, and check it against the plain computation.

    Args:
        model: A causal language model with TRL's fused head, or an adapter around one; in evaluation mode.
        prompts: Token ids of some prompts; the longest two are computed in both ways.
        temperature: That of the fused head.

    Returns:
        Why the model has to be computed plainly, and then it is as it was before; None if all is well.
    """
    plain = getattr(model, "get_base_model", lambda: model)()
    if plain.config._attn_implementation != "sdpa":
        return f"its attention is {plain.config._attn_implementation}, not sdpa"
    plain.set_attn_implementation(ATTENTION)
    hook = plain.base_model.register_forward_hook(_keep_predicting, with_kwargs=True)
    try:
        difference = _difference(model, sorted(prompts, key=len)[-2:], temperature)
        allowed = ROUNDING.get(plain.dtype, ROUGH_ROUNDING)
        reason = None if difference <= allowed else f"log-probabilities differ by {difference:.2g} on average"
    except Exception as error:  # an architecture may refuse what it does not know in any way it likes
        reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        hook.remove()
        plain.set_attn_implementation("sdpa")
    return reason


@torch.no_grad()
def _difference(model: torch.nn.Module, prompts: Sequence[list[int]], temperature: float) -> float:
    """Mean difference between log-probabilities over the tree and plain ones; not a number is infinitely far."""
    device = next(model.parameters()).device
    halves = [prompt[: len(prompt) // 2 + 1] for prompt in prompts]
    pairs = [(prompt, [*half, *tail]) for prompt in prompts for half in halves for tail in ([], prompt[:2])]
    ours, _ = completion_log_probs(model, *zip(*pairs, strict=True), max(map(len, halves)) + 2, device)
    differences = []
    for row, (prompt, completion) in zip(ours, pairs, strict=True):
        logits = model(input_ids=torch.tensor([[*prompt, *completion]], device=device)).logits[0]
        expected = (logits[len(prompt) - 1 : -1].float() / temperature).log_softmax(-1)
        wanted = torch.tensor(completion, device=device)
        differences.append((row[: len(completion)] - expected.gather(1, wanted[:, None])[:, 0]).abs())
    return float(torch.cat(differences).mean().nan_to_num(torch.inf))


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
