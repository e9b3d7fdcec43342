"""Log-probabilities of completions, computed over the tree of their prefixes (`stages.prefix_tree`)."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from stages.prefix_tree import ATTENTION, PrefixTree, prefix_tree
from stages.token_head import LogitScale, TokenLogProbs

ROUNDING = {torch.float32: 1e-4}
"""Mean difference to the plain computation that is taken for rounding; in smaller types it is `ROUGH_ROUNDING`."""
ROUGH_ROUNDING = 0.05


def enable(model: torch.nn.Module, prompts: Sequence[list[int]], temperature: float) -> str | None:
    """Make a model understand the arguments of `completion_log_probs`, and check it against the plain computation.

    Args:
        model: A causal language model, or an adapter around one; in evaluation mode.
        prompts: Token ids of some prompts; the longest two are computed in both ways.
        temperature: What logits are divided by.

    Returns:
        Why the model has to be computed plainly, and then it is as it was before; None if all is well.
    """
    plain = getattr(model, "get_base_model", lambda: model)()
    head = plain.get_output_embeddings()
    if plain.config._attn_implementation != "sdpa":
        return f"its attention is {plain.config._attn_implementation}, not sdpa"
    if not isinstance(head, torch.nn.Linear) or head.bias is not None or head.weight.requires_grad:
        return "its head is not a frozen linear layer without a bias"
    own = plain.forward
    plain.set_attn_implementation(ATTENTION)
    plain.forward = _forward(plain, temperature)
    try:
        difference = _difference(model, sorted(prompts, key=len)[-2:], temperature)
        allowed = ROUNDING.get(plain.dtype, ROUGH_ROUNDING)
        reason = None if difference <= allowed else f"log-probabilities differ by {difference:.2g} on average"
    except Exception as error:  # an architecture may refuse what it does not know in any way it likes
        reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        plain.set_attn_implementation("sdpa")
        plain.forward = own
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


def _forward(plain: PreTrainedModel, temperature: float) -> Callable[..., Any]:
    """A model's forward pass that knows what to do when it is given a tree.

    It takes the place of the model's own, so that whatever is wrapped around the model (an adapter, data parallelism)
    sees one call.
    """
    own, scale = plain.forward, LogitScale.of(plain.config, temperature)

    @functools.wraps(own)
    def forward(*args: Any, tree: PrefixTree | None = None, steps: Steps | None = None, **options: Any) -> Any:
        if tree is None or steps is None:
            return own(*args, **options)
        output = plain.base_model(
            input_ids=tree.ids[None],
            position_ids=tree.positions[None],
            attention_mask=torch.ones(1, 1, 1, 1, device=tree.ids.device),  # of four dimensions: is taken as it is
            tree=tree,
            use_cache=False,
        )
        hidden, weight = output.last_hidden_state[0, steps.nodes], plain.get_output_embeddings().weight
        return TokenLogProbs.apply(hidden, weight, steps.rows, steps.tokens, scale)

    return forward


@dataclass(frozen=True)
class Steps:
    """Steps from a node of a tree to a token that follows it in some sequence, each once.

    Attributes:
        nodes: From which a step leads, each once: (nodes,).
        rows: Place of a step's node among them: (steps,).
        tokens: Where a step leads: (steps,).
    """

    nodes: torch.Tensor
    rows: torch.Tensor
    tokens: torch.Tensor

    @classmethod
    def of(cls, steps: Iterable[tuple[int, int]], device: torch.device) -> "Steps":
        """From pairs of a node and a token."""
        rows: dict[int, int] = {}
        pairs = [(rows.setdefault(node, len(rows)), token) for node, token in steps]
        return cls(
            torch.tensor(list(rows), dtype=torch.long, device=device),
            torch.tensor([row for row, _ in pairs], dtype=torch.long, device=device),
            torch.tensor([token for _, token in pairs], dtype=torch.long, device=device),
        )


def completion_log_probs(
    model: torch.nn.Module,
    prompts: Sequence[list[int]],
    completions: Sequence[list[int]],
    width: int,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probability of every token of the completions, and the entropy of its distribution in nats.

    Args:
        model: An enabled model, or an adapter around one.
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
    values = model(tree=tree, steps=Steps.of(steps, device))
    padded = [torch.cat([each, each.new_zeros(1)])[places.to(device)] for each in values]
    return padded[0], padded[1]
