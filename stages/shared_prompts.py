"""The completions of a group share their prompt: compute it once and let all of them attend to the result.

The result is the same. TRL computes each prompt `group_size` times, for sampling, for the reference and for the
policy, which is the larger part of a step where prompts are longer than replies.
"""

from collections.abc import Sequence

import torch
from transformers import Cache, DynamicCache, GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer


def supports(config: PretrainedConfig) -> bool:
    """Whether every layer of a model keeps the keys and values of all tokens: no sliding windows, no other states."""
    layers = DynamicCache(config=config.get_text_config(decoder=True)).layers
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


def completion_logits(
    model: torch.nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor, tokens: int
) -> torch.Tensor:
    """Logits that predict the completions, with every distinct prompt computed once for all of its completions.

    The prompts' keys and values are computed first, and each completion attends to those of its prompt; gradients flow
    through them.

    Args:
        model: A causal language model.
        input_ids: Prompts, padded on the left, and completions: (sequences, prompt + completion tokens).
        attention_mask: Of the same shape.
        tokens: Length of the completions.

    Returns:
        (sequences, tokens, vocabulary).
    """
    start = input_ids.shape[1] - tokens - 1  # the last token of a prompt predicts the first of its completion
    prompts = torch.stack([input_ids, attention_mask], -1)[:, :start]
    distinct, prompt_of = torch.unique(prompts, dim=0, return_inverse=True)
    cache = keys_and_values(model, *distinct.unbind(-1))
    cache.batch_select_indices(prompt_of)
    logits: torch.Tensor = model(
        input_ids=input_ids[:, start:],
        attention_mask=attention_mask,
        position_ids=_positions(attention_mask)[:, start:],
        cache=cache,
    ).logits
    return logits[:, :-1]


@torch.no_grad()
def sample(
    model: PreTrainedModel, prompts: Sequence[list[int]], samples: int, config: GenerationConfig
) -> list[list[int]]:
    """`samples` completions per prompt, one prompt's after the other's; each prompt is computed once.

    Args:
        model: A causal language model for which `supports` holds.
        prompts: Token ids, one list per prompt.
        samples: Completions per prompt.
        config: How to sample, with a pad token.

    Returns:
        Token ids after the prompt, padding included.
    """
    ids, mask = padded(prompts, config.pad_token_id, model.device)
    shared = {}
    if ids.shape[1] > 1:  # the last token is computed with the completions, whose first one it predicts
        shared["cache"] = keys_and_values(model, ids[:, :-1], mask[:, :-1])
        shared["cache"].batch_repeat_interleave(samples)
    output = model.generate(
        input_ids=ids.repeat_interleave(samples, 0),
        attention_mask=mask.repeat_interleave(samples, 0),
        generation_config=config,
        **shared,
    )
    completions: list[list[int]] = output[:, ids.shape[1] :].tolist()
    return completions


def padded(prompts: Sequence[list[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts padded on the left, and their attention mask: both (prompts, longest prompt)."""
    width = max(len(prompt) for prompt in prompts)
    ids = [[pad] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def keys_and_values(model: torch.nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Cache:
    """What later tokens attend to: the cache after the given tokens, which may be padded on the left."""
    output = model(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=_positions(attention_mask),
        logits_to_keep=1,
        use_cache=True,
    )
    return output.past_key_values


def _positions(attention_mask: torch.Tensor) -> torch.Tensor:
    return (attention_mask.cumsum(-1) - 1).clamp(min=0)
