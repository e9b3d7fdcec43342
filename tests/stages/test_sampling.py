"""What is sampled: exactly the model's own distribution, whatever is shared on the way."""

from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
)

from stages import sampling
from stages.sampling import sample, supports
from tests.stages.families import FAMILIES, SMALL

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 20], [5, 6, 7], [5, 6, 7, 20]]


def model(config: PretrainedConfig, peaked: float = 8.0) -> Any:
    """A random model whose next token is far from random."""
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(config).eval()
    made.generation_config.eos_token_id = None
    with torch.no_grad():
        made.lm_head.weight.mul_(peaked)
    return made


@pytest.mark.parametrize(
    ("config", "supported"),
    [
        (LlamaConfig(num_hidden_layers=2), True),
        (Qwen2Config(num_hidden_layers=2), True),
        (Gemma3TextConfig(num_hidden_layers=6), True),
        (MistralConfig(num_hidden_layers=2, sliding_window=16), True),
        (MambaConfig(num_hidden_layers=2), False),
    ],
    ids=lambda value: value.model_type if isinstance(value, PretrainedConfig) else str(value),
)
def test_layers_that_keep_keys_and_values_are_supported(config: PretrainedConfig, supported: bool) -> None:
    with torch.device("meta"):
        assert supports(AutoModelForCausalLM.from_config(config)) is supported


@pytest.mark.parametrize("family", FAMILIES)
def test_without_chance_it_is_transformers_own_greedy_search(family: str) -> None:
    made = model(FAMILIES[family])
    options = {"max_new_tokens": 12, "temperature": 0.0}
    found = sample(made, PROMPTS, 2, **options, stop_ids=[])
    stop = found[0][5]  # a token that ends some of them
    ended = sample(made, PROMPTS, 2, **options, stop_ids=[stop])
    for prompt, completion, short in zip([p for p in PROMPTS for _ in range(2)], found, ended, strict=True):
        ids = torch.tensor([prompt])
        own = made.generate(input_ids=ids, max_new_tokens=12, do_sample=False)[0, len(prompt) :].tolist()
        assert completion == own
        assert short == (own[: own.index(stop) + 1] if stop in own else own)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_token_is_drawn_from_the_models_own_distribution(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits a token is drawn from are those of a plain forward pass over all that comes before it."""
    made, seen, draw = model(FAMILIES[family]), [], sampling._draw
    monkeypatch.setattr(
        sampling,
        "_draw",
        lambda logits, rows, temperature: seen.append((logits, rows)) or draw(logits, rows, temperature),
    )
    completions = sample(made, PROMPTS, 3, max_new_tokens=9, temperature=1.0, stop_ids=[2, 3, 4])
    prompts = [prompt for prompt in PROMPTS for _ in range(3)]
    compared = 0
    for step, (logits, rows) in enumerate(seen):
        growing = [place for place, completion in enumerate(completions) if len(completion) > step]
        assert len(growing) == len(rows)
        for place, row in zip(growing, rows, strict=True):
            ids = torch.tensor([[*prompts[place], *completions[place][:step]]])
            torch.testing.assert_close(logits[row], made(input_ids=ids).logits[0, -1], rtol=1e-4, atol=1e-4)
            compared += 1
    assert compared == sum(map(len, completions)) > 60


def test_only_distinct_prefixes_that_still_grow_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    made, shapes = model(FAMILIES["llama"]), []
    made.model.layers[0].register_forward_hook(lambda _, __, output: shapes.append(tuple(output.shape[:2])))
    completions = sample(made, PROMPTS, 4, max_new_tokens=6, temperature=1.0, stop_ids=[2, 3])
    prompts = [tuple(prompt) for prompt in PROMPTS for _ in range(4)]
    assert shapes[:2] == [(1, 2), (3, 5)], "what all prompts begin with, then the rest of the distinct ones"
    for step, shape in enumerate(shapes[2:], start=1):
        growing = {(p, *c[:step]) for p, c in zip(prompts, completions, strict=True) if len(c) > step}
        assert shape == (len(growing), 1)
    assert len(shapes) == 2 + max(map(len, completions)) - 1


def test_frequencies_of_pairs_follow_the_model() -> None:
    """Two tokens in a row, over a vocabulary of five, 6,000 times, by chi-square."""
    made = model(LlamaConfig(**{**SMALL, "vocab_size": 8}), peaked=20.0)
    samples, temperature, prompt = 6000, 1.3, [5, 6]
    torch.manual_seed(1)
    counts = Counter(
        tuple(completion)
        for completion in sample(made, [prompt], samples, max_new_tokens=2, temperature=temperature, stop_ids=[2])
    )
    expected: dict[tuple[int, ...], float] = {}
    with torch.no_grad():
        first = (made(input_ids=torch.tensor([prompt])).logits[0, -1].double() / temperature).softmax(-1)
        for token, other in product(range(8), repeat=2):
            logits = made(input_ids=torch.tensor([[*prompt, token]])).logits[0, -1].double()
            pair = (token,) if token == 2 else (token, other)
            chance = first[token] * (1.0 if token == 2 else (logits / temperature).softmax(-1)[other])
            expected[pair] = samples * float(chance)
    assert max(expected.values()) > 5 * min(expected.values()), "a flat distribution would show nothing"
    common = [pair for pair, count in expected.items() if count >= 5]
    observed = [*(counts[pair] for pair in common), samples - sum(counts[pair] for pair in common)]
    wanted = [*(expected[pair] for pair in common), samples - sum(expected[pair] for pair in common)]
    if wanted[-1] < 5:
        observed[-2:], wanted[-2:] = [sum(observed[-2:])], [sum(wanted[-2:])]
    assert chisquare(observed, wanted).pvalue > 1e-3


def test_impossible_tokens_are_never_drawn_and_seeds_decide() -> None:
    logits = torch.full((2, 6), -torch.inf)
    logits[0, 3] = logits[1, 0] = logits[1, 5] = 0.0
    torch.manual_seed(0)
    drawn = sampling._draw(logits, [0, 1] * 200, 1.0)
    assert set(drawn[::2]) == {3} and set(drawn[1::2]) == {0, 5}
    torch.manual_seed(0)
    assert sampling._draw(logits, [0, 1] * 200, 1.0) == drawn
    assert sampling._draw(logits, [0, 1] * 200, 1.0) != drawn
