"""Log-probabilities for TRL's trainers, with what sequences begin with in common computed once.

TRL asks a model for the log-probabilities of labels (its fused head, `add_fused_lm_head`), and then the model computes
every sequence in full. Here the same question is answered over the tree of the sequences' prefixes, which is the same
mathematics: see `stages.prefix_tree`. The trainers, and whatever is wrapped around the model, notice nothing.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from trl.trainer.utils import FusedCausalLMOutput, pad

from stages.models import evaluating
from stages.prefix_tree import ATTENTION, PrefixTree, prefix_tree
from stages.token_head import LogitScale, TokenLogProbs

ROUNDING, ROUGH_ROUNDING = 1e-4, 0.05
"""Mean difference to the plain computation that is taken for rounding, in float32 and in smaller types."""
WORTH_IT = 0.5
"""On a GPU, full batches are fast: a tree must have fewer than this share of a batch's tokens."""
IGNORED = -100
"""Label of a token that nobody asks for."""


def share_prefixes(
    model: torch.nn.Module,
    prompts: Sequence[list[int]],
    *,
    statistics: Sequence[str],
    temperature: float = 1.0,
    say: Callable[[str], None],
) -> bool:
    """Let a model that has TRL's fused head answer over prefix trees, if it can; otherwise it is left as it is.

    Args:
        model: A causal language model, or an adapter around one.
        prompts: Token ids of some prompts. The longest two are computed in both ways, and have to agree.
        statistics: What the trainer wants besides log-probabilities: names of `stages.token_head.STATISTICS`.
        temperature: That of the fused head.
        say: Told why it cannot.

    Returns:
        Whether it can.
    """
    plain: PreTrainedModel = getattr(model, "get_base_model", lambda: model)()
    reason = _obstacle(plain)
    if reason is None:
        own = plain.forward
        plain.set_attn_implementation(ATTENTION)
        plain.forward = _forward(plain, LogitScale.of(plain.config, temperature), statistics)
        with evaluating(model):
            reason = _disagreement(plain, own, prompts)
        if reason is not None:
            plain.forward = own
            plain.set_attn_implementation("sdpa")
    if reason is not None:
        say(f"common prefixes are computed again for every sequence, as stock TRL does: {reason}")
    return reason is None


def _obstacle(plain: PreTrainedModel) -> str | None:
    head: Any = plain.get_output_embeddings()
    if plain.config._attn_implementation != "sdpa":
        return f"the model's attention is {plain.config._attn_implementation}, not sdpa"
    if not isinstance(head, torch.nn.Linear) or head.weight.requires_grad or getattr(head, "bias", None) is not None:
        return "the model's head is not a frozen linear layer without a bias"
    return None


def _disagreement(plain: PreTrainedModel, own: Callable[..., Any], prompts: Sequence[list[int]]) -> str | None:
    """What the model's forward pass over trees, compared with its own, has against it."""
    try:
        difference = _difference(plain.forward, own, sorted(prompts, key=len)[-2:], plain.device)
    except Exception as error:  # an architecture may refuse what it does not know in any way it likes
        return f"{type(error).__name__}: {error}"
    if difference <= (ROUNDING if plain.dtype == torch.float32 else ROUGH_ROUNDING):
        return None
    return f"the model's log-probabilities would differ by {difference:.2g} on average"


def _forward(plain: PreTrainedModel, scale: LogitScale, statistics: Sequence[str]) -> Callable[..., Any]:
    """The model's forward pass, but for questions to the fused head about whole sequences."""
    own = plain.forward

    @functools.wraps(own)
    def forward(*args: Any, fused_lm_head: bool = False, **inputs: Any) -> Any:
        if not fused_lm_head:
            return own(*args, **inputs)
        given = {name: value for name, value in inputs.items() if value is not None and name != "use_cache"}
        found = Question.of(**given) if given.keys() == QUESTION and not args else None
        if found is None:
            return own(*args, fused_lm_head=True, **inputs)
        tree = found.tree
        output = plain.base_model(
            input_ids=tree.ids[None],
            position_ids=tree.positions[None],
            attention_mask=torch.ones(1, 1, 1, 1, device=tree.ids.device),  # of four dimensions: is taken as it is
            tree=tree,
            use_cache=False,
        )
        hidden, weight = output.last_hidden_state[0, found.nodes], plain.get_output_embeddings().weight
        values: Any = TokenLogProbs.apply(  # type: ignore[no-untyped-call]
            hidden, weight, found.rows, found.tokens, scale, statistics
        )
        return found.answer(dict(zip(("log_probs", *statistics), values, strict=True)))

    return forward


QUESTION = {"input_ids", "attention_mask", "labels"}
"""Inputs that are understood; with any other, such as router logits, the model answers on its own."""


@dataclass(frozen=True)
class Question:
    """Which steps of a tree somebody asks for: from a node to a token that follows it in some sequence.

    Attributes:
        tree: Of all that leads to them.
        nodes: From where steps lead, each once.
        rows: Per step, the place of its node among them.
        tokens: Per step, its token.
        places: Per label, the place of its step: (sequences, tokens - 1); -1 where there is none.
    """

    tree: PrefixTree
    nodes: torch.Tensor
    rows: torch.Tensor
    tokens: torch.Tensor
    places: torch.Tensor

    @classmethod
    def of(cls, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> "Question | None":
        """From a batch as TRL makes it, padded on either side; None if there is nothing to gain from a tree."""
        batch = zip(input_ids.tolist(), attention_mask.tolist(), labels.tolist(), strict=True)
        asked = [(place, *_asked(*row)) for place, row in enumerate(batch)]
        asked = [(place, tokens, wanted) for place, tokens, wanted in asked if wanted]
        if not asked:
            return None
        tree = prefix_tree([tokens for _, tokens, _ in asked], input_ids.device)
        if input_ids.device.type != "cpu" and len(tree.ids) > WORTH_IT * input_ids.numel():
            return None
        steps: dict[tuple[int, int], int] = {}
        places = torch.full((len(input_ids), input_ids.shape[1] - 1), -1)
        for path, (row, _, wanted) in zip(tree.paths, asked, strict=True):
            for position, token, column in wanted:
                places[row, column - 1] = steps.setdefault((path[position - 1], token), len(steps))
        nodes = {node: row for row, node in enumerate(dict.fromkeys(node for node, _ in steps))}
        rows, tokens = [nodes[node] for node, _ in steps], [token for _, token in steps]
        tensor = functools.partial(torch.tensor, device=input_ids.device)
        return cls(tree, tensor(list(nodes)), tensor(rows), tensor(tokens), places.to(input_ids.device))

    def answer(self, values: dict[str, torch.Tensor]) -> FusedCausalLMOutput:
        """Values of the steps as TRL wants them: (sequences, tokens - 1), and 0 where nothing is asked."""
        largest = values.pop("largest", None)
        if largest is not None:
            values["is_top1"] = values["log_probs"] >= largest
        label_mask = self.places >= 0
        spread = {name: torch.cat([each, each.new_zeros(1)])[self.places] for name, each in values.items()}
        return FusedCausalLMOutput(loss=-spread["log_probs"].sum() / label_mask.sum(), label_mask=label_mask, **spread)


def _asked(ids: list[int], mask: list[int], labels: list[int]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """A sequence without padding and without what comes after the last label's predecessor; and its labels.

    Labels are given by their position in the sequence, token, and column in the batch. Nothing predicts a first token.
    """
    columns = [column for column, kept in enumerate(mask) if kept]
    wanted = [
        (position, labels[column], column)
        for position, column in enumerate(columns)
        if position and labels[column] != IGNORED
    ]
    last = wanted[-1][0] if wanted else 0
    return [ids[column] for column in columns[:last]], wanted


@torch.no_grad()
def _difference(
    ours: Callable[..., Any], own: Callable[..., Any], prompts: Sequence[list[int]], device: torch.device
) -> float:
    """Mean difference between log-probabilities over a tree and plain ones; not a number is infinitely far."""
    halves = [prompt[: len(prompt) // 2 + 1] for prompt in prompts]
    sequences = [[*prompt, *half, *tail] for prompt in prompts for half in halves for tail in ([], prompt[:2])]
    unpadded = [torch.tensor(sequence, device=device) for sequence in sequences]
    ids, mask = pad(unpadded), pad([torch.ones_like(sequence) for sequence in unpadded])
    question = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORED)}
    one, other = (forward(**question, fused_lm_head=True).log_probs for forward in (ours, own))
    return float(((one - other).abs().sum() / mask[:, 1:].sum()).nan_to_num(torch.inf))
