"""Sampling in which nothing is computed twice: prompts, and completions as long as they agree, are one computation.

Two completions with the same prompt and the same tokens so far have the same next-token distribution. So a decoding
step runs over the distinct prefixes that are still growing, and each completion draws from its prefix's distribution.
Completions that have ended are not computed any further. What is drawn has exactly the model's own distribution.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache, DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from stages.prefix_tree import common_prefix

ROOM = 64
"""Tokens for which a cache makes room at a time."""

PART = 256
"""Tokens of the vocabulary whose chances are added up before one of them is drawn."""


def supports(model: PreTrainedModel) -> bool:
    """Whether every layer of a model keeps keys and values of tokens, all or the latest ones, and nothing else."""
    layers = set(_layers(model.config))
    takes_a_cache = "cache" in inspect.signature(type(model).forward).parameters  # a model with code of its own may not
    return takes_a_cache and bool(layers) and layers <= {DynamicLayer, DynamicSlidingWindowLayer}


def _layers(config: PretrainedConfig) -> list[type]:
    return [type(layer) for layer in DynamicCache(config=config.get_text_config(decoder=True)).layers]


@torch.no_grad()
def sample(
    model: torch.nn.Module,
    prompts: Sequence[Sequence[int]],
    samples: int,
    *,
    max_new_tokens: int,
    temperature: float,
    stop_ids: Sequence[int],
) -> list[list[int]]:
    """`samples` completions per prompt, one prompt's after the other's, each up to and with its stop token.

    Args:
        model: A causal language model for which `supports` holds.
        prompts: Token ids, none empty.
        samples: Completions per prompt.
        max_new_tokens: Longest completion, in tokens.
        temperature: 0 takes the likeliest token; above, exact sampling from softmax(logits / temperature).
        stop_ids: Tokens that end a completion.
    """
    distinct = {prompt: place for place, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    prefixes = Prefixes(model, list(distinct))
    completions: list[list[int]] = [[] for _ in prompts for _ in range(samples)]
    growing = list(range(len(completions)))
    prefix_of = [distinct[tuple(prompt)] for prompt in prompts for _ in range(samples)]
    while True:
        tokens = _draw(prefixes.logits, prefix_of, temperature)
        for index, token in zip(growing, tokens, strict=True):
            completions[index].append(token)
        grown = [
            (index, (prefix, token))
            for index, prefix, token in zip(growing, prefix_of, tokens, strict=True)
            if token not in stop_ids and len(completions[index]) < max_new_tokens
        ]
        if not grown:
            return completions
        places = {prefix: place for place, prefix in enumerate(dict.fromkeys(prefix for _, prefix in grown))}
        prefixes.grow(list(places))
        growing, prefix_of = [index for index, _ in grown], [places[prefix] for _, prefix in grown]


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values with room for more, so that the next token is written without copying all before it."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Append keys and values, and return all: (prefixes, heads, tokens, size)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.keys, self.values = _appended(self.keys, key_states), _appended(self.values, value_states)
        return self.keys, self.values


def _appended(kept: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Both, one after the other: in place where `kept` is the beginning of a buffer with room."""
    before, after = kept.shape[2], kept.shape[2] + new.shape[2]
    if kept.stride(1) >= after * kept.stride(2):
        whole = kept.as_strided((*kept.shape[:2], after, kept.shape[3]), kept.stride())
    else:
        whole = new.new_empty(*new.shape[:2], after + ROOM, new.shape[3])[:, :, :after]
        whole[:, :, :before] = kept
    whole[:, :, before:] = new
    return whole


class Prefixes:
    """Distinct prefixes, what later tokens attend to in them, and their next-token distributions.

    Attributes:
        logits: (prefixes, vocabulary).
    """

    def __init__(self, model: torch.nn.Module, prompts: Sequence[tuple[int, ...]]) -> None:
        """Compute the prompts, and what all of them begin with only once.

        That is followed by padding, which a layer that sees the latest tokens would take for tokens.
        """
        self.model = model
        self.device = next(model.parameters()).device
        layers = _layers(model.config)
        plain = DynamicSlidingWindowLayer not in layers
        self.cache = Cache(layers=[GrowingLayer() for _ in layers]) if plain else DynamicCache(config=model.config)
        trunk = min(common_prefix(min(prompts), max(prompts)), min(map(len, prompts)) - 1)
        if not plain:
            trunk = 0
        self.mask = torch.ones(1, 0, dtype=torch.long, device=self.device)
        if trunk:
            self._forward([prompts[0][:trunk]])
            self.cache.batch_repeat_interleave(len(prompts))
        self.mask = self.mask.expand(len(prompts), -1)
        self._forward([prompt[trunk:] for prompt in prompts])

    def grow(self, children: Sequence[tuple[int, int]]) -> None:
        """Replace the prefixes by longer ones, each given by the one that it continues and its next token."""
        parents = torch.tensor([parent for parent, _ in children], device=self.device)
        if len(children) != len(self.mask) or not torch.equal(
            parents, torch.arange(len(self.mask), device=self.device)
        ):
            self.cache.batch_select_indices(parents)
            self.mask = self.mask[parents]
        self._forward([[token] for _, token in children])

    def _forward(self, tokens: Sequence[Sequence[int]]) -> None:
        """Compute further tokens of every prefix, padded on the left."""
        ids, mask = padded(tokens, 0, self.device)
        self.mask = torch.cat([self.mask, mask], 1)
        output = self.model(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=(self.mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :],
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.logits = output.logits[:, -1]


def _draw(logits: torch.Tensor, rows: Sequence[int], temperature: float) -> list[int]:
    """One token for every given row of the logits."""
    if temperature == 0:
        likeliest = logits.argmax(-1).tolist()
        return [likeliest[row] for row in rows]
    double = torch.float32 if logits.device.type == "mps" else torch.float64
    chances = (logits.float() / temperature).softmax(-1)
    parts = torch.nn.functional.pad(chances, (0, -logits.shape[-1] % PART)).view(len(logits), -1, PART)
    row = torch.tensor(rows, device=logits.device)
    upto = parts.sum(-1, dtype=double).cumsum(-1)[row]
    at = torch.rand(len(rows), 1, dtype=double).to(logits.device) * upto[:, -1:]
    part = _reached(upto, at)
    before = torch.where(part > 0, upto.gather(1, (part - 1).clamp(min=0)), 0.0)
    within = parts[row, part[:, 0]].cumsum(-1, dtype=double)
    tokens: list[int] = (part * PART + _reached(within, at - before))[:, 0].tolist()
    return tokens


def _reached(cumulated: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Where every row of sums exceeds a number below its last; that is so whatever was rounded."""
    last = cumulated[:, -1:] * (1 - torch.finfo(cumulated.dtype).eps)
    return torch.searchsorted(cumulated, torch.minimum(at, last), right=True)


def padded(sequences: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences padded on the left, and their attention mask: both (sequences, longest)."""
    width = max(map(len, sequences))
    ids = [[pad] * (width - len(sequence)) + list(sequence) for sequence in sequences]
    mask = [[0] * (width - len(sequence)) + [1] * len(sequence) for sequence in sequences]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)
