"""Sharing prefixes changes nothing: log-probabilities, statistics and gradients against TRL's own fused head."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    PretrainedConfig,
)
from trl.trainer.utils import add_fused_lm_head

from stages.prefix_tree import ATTENTION
from stages.shared_prefix import share_prefixes
from tests.stages.families import FAMILIES

TEMPERATURE = 0.8
STATISTICS = ["entropy", "mean_logits", "log_sum_sq_probs", "largest"]
OUTPUTS = ("log_probs", "entropy", "mean_logits", "log_sum_sq_probs", "is_top1")
PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 20, 21]]


def model(config: PretrainedConfig, attention: str = "sdpa") -> Any:
    """A random model with TRL's fused head and an adapter that has an effect."""
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=attention)
    add_fused_lm_head(plain, temperature=TEMPERATURE, outputs=OUTPUTS)
    adapted = get_peft_model(
        plain, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear", init_lora_weights=False)
    )
    return adapted.eval()


def batch() -> dict[str, torch.Tensor]:
    """Groups as GRPO has them: prompts padded on the left, completions on the right; one is masked altogether."""
    left, completions = [], []
    for prompt, group in zip(
        PROMPTS, ([[3, 4, 5], [3, 4], [3, 9, 9, 9], [30]], [[3, 4, 5], [3, 4, 5], [8, 2], []]), strict=True
    ):
        left += [[-1] * (8 - len(prompt)) + prompt] * len(group)
        completions += [completion + [-1] * (4 - len(completion)) for completion in group]
    ids = torch.tensor([one + other for one, other in zip(left, completions, strict=True)])
    mask = (ids >= 0).long()
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :8] = -100
    return {"input_ids": ids.clamp(min=0), "attention_mask": mask, "labels": labels}


def answer(adapted: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The fused head's outputs, and the gradients of a weighted sum of log-probabilities."""
    question = batch()
    output = adapted(**question, fused_lm_head=True)
    weights = torch.linspace(-1, 1, output.log_probs.numel()).view(output.log_probs.shape)
    adapted.zero_grad()
    (output.log_probs * weights).sum().backward()
    gradients = {name: weight.grad for name, weight in adapted.named_parameters() if weight.grad is not None}
    wanted = question["labels"][:, 1:] != -100
    return {name: getattr(output, name).masked_fill(~wanted, 0) for name in OUTPUTS}, gradients


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_answers_and_gradients_are_trls(family: str, checkpointing: bool) -> None:
    expected, expected_gradients = answer(model(FAMILIES[family]))
    ours = model(FAMILIES[family])
    assert share_prefixes(ours, PROMPTS, statistics=STATISTICS, temperature=TEMPERATURE, say=pytest.fail)
    if checkpointing:
        ours.get_base_model().activation_checkpointing_enable({"use_reentrant": False})
        ours.train()
    found, gradients = answer(ours)
    for name in OUTPUTS:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5, msg=name)
    assert gradients.keys() == expected_gradients.keys() and len(gradients) > 20
    for name, gradient in expected_gradients.items():
        assert (gradients[name] - gradient).norm() <= 1e-4 * gradient.norm(), name


def test_no_more_is_computed_than_distinct_prefixes() -> None:
    ours = model(FAMILIES["llama"])
    share_prefixes(ours, PROMPTS, statistics=[], temperature=TEMPERATURE, say=pytest.fail)
    computed: list[Any] = []
    plain = ours.get_base_model()
    plain.base_model.layers[0].register_forward_hook(lambda _, __, output: computed.append(output.shape))
    ours(**batch(), fused_lm_head=True)
    # 5 6 7, then 8 9 10 11 and 20 21; completions without their last tokens: 3, 3 4, 3 9, 3 9 9, and 3, 3 4, 8
    assert computed == [(1, 3 + 4 + 2 + 4 + 3, 32)]


def test_everything_else_is_left_to_the_model() -> None:
    stock, ours = model(FAMILIES["llama"]), model(FAMILIES["llama"])
    share_prefixes(ours, PROMPTS, statistics=[], temperature=TEMPERATURE, say=pytest.fail)
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(ours(input_ids=ids).logits, stock(input_ids=ids).logits)
    generated = [each.generate(input_ids=ids, max_new_tokens=5, do_sample=False) for each in (ours, stock)]
    assert torch.equal(*generated)
    nothing = {**batch(), "labels": torch.full((8, 12), -100)}
    assert ours(**nothing, fused_lm_head=True).log_probs.sum() == 0


def broken_attention(adapted: Any) -> Any:
    """A model whose attention depends on more than it is told: every layer adds the position in the batch."""
    attention = adapted.get_base_model().base_model.layers[1]
    attention.register_forward_hook(lambda _, __, output: output + torch.arange(output.shape[1])[None, :, None])
    return adapted


def biased_head(adapted: Any) -> Any:
    head = adapted.get_base_model().lm_head
    head.bias = torch.nn.Parameter(torch.zeros(head.out_features))
    return adapted


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: broken_attention(model(FAMILIES["llama"])), "log-probabilities would differ by"),
        (lambda: biased_head(model(FAMILIES["llama"])), "head is not a frozen linear layer without a bias"),
        (
            lambda: model(BloomConfig(vocab_size=40, hidden_size=32, n_layer=2, n_head=4), "eager"),
            "attention is eager, not sdpa",
        ),
    ],
    ids=["another attention", "a bias", "another implementation"],
)
def test_a_model_that_does_not_agree_is_left_as_it_was(make: Callable[[], Any], reason: str) -> None:
    said: list[str] = []
    adapted = make()
    before, _ = answer(adapted)
    assert not share_prefixes(adapted, PROMPTS, statistics=[], temperature=TEMPERATURE, say=said.append)
    assert len(said) == 1 and reason in said[0] and "as stock TRL does" in said[0]
    assert adapted.get_base_model().config._attn_implementation != ATTENTION
    torch.testing.assert_close(answer(adapted)[0], before)
