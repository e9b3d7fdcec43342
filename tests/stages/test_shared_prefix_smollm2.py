"""On the real model: what is sampled, and what is trained on, with and without sharing prefixes."""

import random
from typing import Any

import pytest
import torch
from peft import get_peft_model
from trl.trainer.utils import add_fused_lm_head

from conf.training import LoraConfig
from stages import sampling
from stages.chat import prompt_ids
from stages.contract import Hardware, ModelRef
from stages.hardware import prepare
from stages.models import load_base, load_tokenizer
from stages.rollout_model import RolloutModel
from stages.rows import Row
from stages.sampling import sample
from stages.shared_prefix import share_prefixes
from stages.training import new_adapter

pytestmark = pytest.mark.slow
TEMPERATURE = 0.9


@pytest.fixture(scope="module")
def sampled(smollm2: ModelRef) -> dict[str, Any]:
    """An adapted model, completions of its folded copy, and the logits that they were drawn from."""
    hardware = Hardware(threads=2)
    prepare(hardware, 0)
    generator = random.Random(0)
    questions = [f"What is {generator.randrange(100)} + {generator.randrange(100)}?" for _ in range(4)]
    tokenizer = load_tokenizer(smollm2)
    prompts = [prompt_ids(tokenizer, smollm2.config, Row(prompt=question)) for question in questions]
    plain = load_base(smollm2, hardware)
    rollout = RolloutModel(plain)
    add_fused_lm_head(plain, temperature=TEMPERATURE, outputs=("log_probs", "entropy"))
    model = get_peft_model(plain, new_adapter(LoraConfig()))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.01)
    rollout.refresh(model)
    drawn: list[list[float]] = []
    draw = sampling._draw

    def watched(logits: torch.Tensor, rows: list[int], temperature: float) -> list[int]:
        tokens = draw(logits, rows, temperature)
        log_probs = (logits / temperature).log_softmax(-1)
        drawn.append([float(log_probs[row, token]) for row, token in zip(rows, tokens, strict=True)])
        return tokens

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "_draw", watched)
        completions = sample(rollout.plain, prompts, 4, max_new_tokens=16, temperature=TEMPERATURE, stop_ids=[2])
    return {"model": model, "prompts": prompts, "completions": completions, "drawn": drawn}


def question(prompts: list[list[int]], completions: list[list[int]]) -> dict[str, torch.Tensor]:
    rows = [(prompts[place // 4], completion) for place, completion in enumerate(completions)]
    longest, most = max(len(prompt) for prompt in prompts), max(map(len, completions))
    ids = [[-1] * (longest - len(p)) + p + c + [-1] * (most - len(c)) for p, c in rows]
    labels = [[-100] * longest + c + [-100] * (most - len(c)) for _, c in rows]
    tensor = torch.tensor(ids)
    return {"input_ids": tensor.clamp(min=0), "attention_mask": (tensor >= 0).long(), "labels": torch.tensor(labels)}


def test_training_sees_what_was_sampled_and_gradients_stay_the_same(sampled: dict[str, Any]) -> None:
    model, asked = sampled["model"], question(sampled["prompts"], sampled["completions"])
    answers = []
    for shared in (False, True):
        if shared:
            options = {"statistics": ["entropy"], "temperature": TEMPERATURE, "say": pytest.fail}
            assert share_prefixes(model, sampled["prompts"], **options)
        model.zero_grad()
        output = model(**asked, fused_lm_head=True)
        weights = torch.linspace(-1, 1, output.log_probs.numel()).view(output.log_probs.shape)
        (output.log_probs * weights).mean().backward()
        gradient = torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None])
        answers.append((output.log_probs.detach(), output.entropy.detach(), gradient))
    (stock, stock_entropy, stock_gradient), (ours, entropy, gradient) = answers
    assert (ours - stock).abs().max() < 1e-4
    assert (entropy - stock_entropy).abs().max() < 1e-3
    assert (gradient - stock_gradient).norm() < 1e-4 * stock_gradient.norm()

    longest = max(len(prompt) for prompt in sampled["prompts"])
    for step, log_probs in enumerate(sampled["drawn"]):
        growing = [place for place, completion in enumerate(sampled["completions"]) if len(completion) > step]
        trained = ours[growing, longest - 1 + step]
        assert (torch.tensor(log_probs) - trained).abs().max() < 1e-4
