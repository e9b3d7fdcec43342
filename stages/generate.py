"""Batched generation with nothing hidden: greedy, or the model's own distribution at a temperature.

Whatever a checkpoint's generation config suggests (`top_k`, `top_p`, penalties) is overruled here, because rewards,
preference pairs and evaluations must see the distribution that the loss talks about.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from stages import sampling
from stages.kept_replies import KeptReplies
from stages.models import evaluating, unchanged_random_state


@dataclass(frozen=True)
class Completion:
    """One reply.

    Attributes:
        text: Decoded without special tokens.
        tokens: Number of generated tokens, the stop token included.
        truncated: Whether `max_new_tokens` came before a stop token.
        ids: The generated tokens themselves.
    """

    text: str
    tokens: int
    truncated: bool
    ids: tuple[int, ...] = ()


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    samples: int = 1,
    stop_ids: Sequence[int],
    seed: int,
    batch_size: int,
    progress: Callable[[int, int], None] | None = None,
    keep: Path | None = None,
    label: str = "",
) -> list[list[Completion]]:
    """Answer every prompt `samples` times.

    Prompts of similar length share a batch, so that little is padded; the result is in the order of `prompts`. The
    caller's random state is left as it was.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer, with a pad token.
        prompts: Token ids, one list per prompt.
        max_new_tokens: Longest completion, in tokens.
        temperature: 0 is greedy; above, exact sampling from softmax(logits / temperature).
        samples: Completions per prompt.
        stop_ids: Tokens that end a completion.
        seed: Seeds the whole call.
        batch_size: Prompts answered at once.
        progress: Called after every batch with how many prompts are done, of how many.
        keep: File in which finished batches are kept and found again (see `stages.kept_replies`).
        label: Tells the calls apart that share the file: which model answers.

    Returns:
        For every prompt its `samples` completions.
    """
    draw = sampling.sample if sampling.supports(model) else _draw
    completions: list[list[Completion]] = [[] for _ in prompts]
    done = 0
    settings: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "stop_ids": list(stop_ids),
    }
    call = [label, seed, samples, batch_size, settings, prompts]
    kept = KeptReplies(keep, call, model.device)
    with evaluating(model), unchanged_random_state(model.device):
        torch.manual_seed(seed)
        for number, batch in enumerate(_batches(prompts, batch_size)):
            replies = kept.get(number)
            if replies is None:
                replies = draw(model, [prompts[index] for index in batch], samples, **settings)
                kept.add(number, replies)
            texts = [read_completion(tokenizer, reply, stop_ids) for reply in replies]
            for position, index in enumerate(batch):
                completions[index] = texts[position * samples : (position + 1) * samples]
            done += len(batch)
            if progress is not None:
                progress(done, len(prompts))
    return completions


def _batches(prompts: Sequence[list[int]], batch_size: int) -> Iterator[list[int]]:
    """Indices of prompts, the longest first: what would run out of memory does so at once."""
    order = sorted(range(len(prompts)), key=lambda index: (-len(prompts[index]), index))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def _draw(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    samples: int,
    *,
    max_new_tokens: int,
    temperature: float,
    stop_ids: Sequence[int],
) -> list[list[int]]:
    """What `stages.sampling.sample` does, for any model, padding included.

    Every setting that shapes the distribution is named: what is left out would come from the checkpoint.
    """
    chance = temperature > 0
    config = GenerationConfig(
        do_sample=chance,
        temperature=temperature if chance else None,
        top_k=0 if chance else None,
        top_p=1.0 if chance else None,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        num_beams=1,
        num_return_sequences=samples if chance else 1,  # greedy ones are all alike
        max_new_tokens=max_new_tokens,
        eos_token_id=list(stop_ids),
        pad_token_id=stop_ids[0],
    )
    ids, mask = sampling.padded(prompts, stop_ids[0], model.device)
    output = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    replies: list[list[int]] = output[:, ids.shape[1] :].tolist()
    return replies if chance else [reply for reply in replies for _ in range(samples)]


def read_completion(tokenizer: PreTrainedTokenizerBase, ids: list[int], stop_ids: Sequence[int]) -> Completion:
    """Generated token ids as a reply: what comes before the first stop token, if there is one."""
    end = next((position for position, token in enumerate(ids) if token in stop_ids), None)
    kept = ids if end is None else ids[:end]
    text = tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    generated = tuple(ids[: len(kept) + (end is not None)])
    return Completion(text=text, tokens=len(generated), truncated=end is None, ids=generated)
