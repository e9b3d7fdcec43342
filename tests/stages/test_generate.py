"""Generation against plain decoding loops and the model's own distribution."""

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from transformers import PreTrainedModel

from stages.contract import Hardware, ModelRef
from stages.generate import generate
from stages.models import load_base

PROMPTS = [[5, 6, 7], [30, 31, 32, 33, 34, 35, 36], [50], [60, 61, 62, 63, 64]]


@pytest.fixture(scope="module")
def model(tiny: ModelRef, hardware: Hardware) -> PreTrainedModel:
    return load_base(tiny, hardware)


def run(model: PreTrainedModel, tokenizer: Any, prompts: list[list[int]], **changes: Any) -> Any:
    options = {"max_new_tokens": 6, "stop_ids": [], "seed": 0, "batch_size": 3}
    return generate(model, tokenizer, prompts, **{**options, **changes})


@torch.no_grad()
def greedy(model: PreTrainedModel, prompt: list[int], length: int) -> list[int]:
    """One prompt, one token after the other, no cache, no padding."""
    ids = list(prompt)
    for _ in range(length):
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_greedy_is_the_argmax_of_every_step_whatever_the_batch(
    model: PreTrainedModel, tokenizer: Any, batch_size: int
) -> None:
    completions = run(model, tokenizer, PROMPTS, batch_size=batch_size)
    expected = [tokenizer.decode(greedy(model, prompt, 6), skip_special_tokens=True) for prompt in PROMPTS]
    assert [group[0].text for group in completions] == expected


def test_samples_of_one_prompt_follow_that_prompt_though_it_is_computed_once(
    model: PreTrainedModel, tokenizer: Any
) -> None:
    completions = run(model, tokenizer, PROMPTS, temperature=1e-4, samples=3)
    expected = [tokenizer.decode(greedy(model, prompt, 6), skip_special_tokens=True) for prompt in PROMPTS]
    assert [[completion.text for completion in group] for group in completions] == [[text] * 3 for text in expected]


def test_a_stop_token_ends_a_reply_and_is_not_part_of_it(model: PreTrainedModel, tokenizer: Any) -> None:
    replies = {token: greedy(model, [token], 6) for token in range(10, 60)}
    prompt, stop = next((p, ids[2]) for p, ids in replies.items() if ids.index(ids[2]) == 2)
    without = next(p for p, ids in replies.items() if stop not in ids)
    ids, position = replies[prompt], 2
    (stopped,), (cut,) = run(model, tokenizer, [[prompt], [without]], stop_ids=[stop])
    assert stopped.text == tokenizer.decode(ids[:position], skip_special_tokens=True)
    assert (stopped.tokens, stopped.truncated) == (position + 1, False)
    assert (cut.tokens, cut.truncated) == (6, True)


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_sampling_follows_the_softmax_even_when_the_checkpoint_wants_otherwise(
    model: PreTrainedModel, tokenizer: Any, temperature: float
) -> None:
    suggested = {"top_k": 1, "top_p": 0.1, "repetition_penalty": 3.0, "temperature": 0.01, "do_sample": False}
    original = model.generation_config
    model.generation_config = type(original)(**suggested)
    try:
        completions = run(
            model, tokenizer, [PROMPTS[0]], temperature=temperature, samples=4000, max_new_tokens=1, batch_size=1
        )[0]
    finally:
        model.generation_config = original
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([PROMPTS[0]])).logits[0, -1].double()
    # Bytes that are no text decode alike: compare the frequencies of what can be told apart.
    texts = [tokenizer.decode([token], skip_special_tokens=True) for token in range(len(logits))]
    probabilities: dict[str, float] = {}
    for text, value in zip(texts, torch.softmax(logits / temperature, -1).tolist(), strict=True):
        probabilities[text] = probabilities.get(text, 0.0) + value
    frequent = [text for text, value in probabilities.items() if value * len(completions) >= 5]
    observed = [sum(completion.text == text for completion in completions) for text in frequent]
    observed.append(len(completions) - sum(observed))
    expected = [probabilities[text] * len(completions) for text in frequent]
    expected.append(len(completions) - sum(expected))
    assert len(frequent) > 10
    assert chisquare(observed, expected).pvalue > 0.001


def test_one_seed_per_call_and_the_caller_keeps_his_random_state(model: PreTrainedModel, tokenizer: Any) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, again, other = (run(model, tokenizer, PROMPTS, temperature=1.0, samples=2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert first == again != other
    assert all(len(group) == 2 for group in first)


def test_progress_counts_prompts(model: PreTrainedModel, tokenizer: Any) -> None:
    seen: list[tuple[int, int]] = []
    assert run(model, tokenizer, [], progress=lambda *counts: seen.append(counts)) == []
    run(model, tokenizer, PROMPTS, progress=lambda *counts: seen.append(counts))
    assert seen == [(3, 4), (4, 4)]


class Stopped(Exception):
    """Ends a call after a batch."""


@pytest.mark.parametrize("damage", ["", '{"call": "a", "ba'])
def test_an_interrupted_call_goes_on_with_the_batches_that_are_there(
    model: PreTrainedModel, tokenizer: Any, tmp_path: Path, damage: str
) -> None:
    def stop(done: int, total: int) -> None:
        if done >= 2:
            raise Stopped

    changes = {"temperature": 1.0, "samples": 3, "batch_size": 1}
    expected = run(model, tokenizer, PROMPTS, **changes)
    keep = tmp_path / "replies.jsonl"
    run(model, tokenizer, PROMPTS, **changes, keep=keep, label="another model")
    with pytest.raises(Stopped):
        run(model, tokenizer, PROMPTS, **changes, keep=keep, progress=stop)
    before = keep.read_text()
    assert before.count("\n") == 4 + 2
    keep.write_text(before + damage)  # a line that was being written
    assert run(model, tokenizer, PROMPTS, **changes, keep=keep) == expected
    assert keep.read_text().startswith(before)
    assert keep.read_text().count("\n") == 4 + 4
    other = run(model, tokenizer, PROMPTS, **{**changes, "seed": 1}, keep=keep)
    assert other == run(model, tokenizer, PROMPTS, **{**changes, "seed": 1}) != expected
