"""Log-probabilities and their gradient against torch's own, for every way in which families scale their logits."""

from typing import Any

import pytest
import torch
from transformers import CohereConfig, Gemma2Config, GraniteConfig, LlamaConfig, PretrainedConfig

from stages import token_head
from stages.token_head import STATISTICS, LogitScale, TokenLogProbs

SCALES = [LogitScale(1.0, None, 1.0), LogitScale(0.25, None, 0.7), LogitScale(1.0, 3.0, 1.0), LogitScale(2.0, 5.0, 0.5)]


def plain(hidden: torch.Tensor, weight: torch.Tensor, scale: LogitScale) -> torch.Tensor:
    logits = hidden @ weight.T * scale.factor
    if scale.cap is not None:
        logits = scale.cap * torch.tanh(logits / scale.cap)
    return logits / scale.temperature


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("states_at_a_time", [1, 2, 100])
def test_values_and_gradient_are_those_of_a_plain_log_softmax(
    monkeypatch: pytest.MonkeyPatch, scale: LogitScale, states_at_a_time: int
) -> None:
    monkeypatch.setattr(token_head, "ELEMENTS", 11 * states_at_a_time)
    hidden, weight = torch.randn(5, 4, requires_grad=True), torch.randn(11, 4)
    rows, tokens = torch.tensor([0, 3, 1, 3, 4, 0]), torch.tensor([2, 10, 0, 9, 5, 7])  # of state 2 nobody asks
    upstream = torch.randn(6)
    log_probs, *statistics = TokenLogProbs.apply(hidden, weight, rows, tokens, scale, tuple(STATISTICS))
    (gradient,) = torch.autograd.grad((log_probs * upstream).sum(), hidden)

    logits = plain(hidden, weight, scale)
    everything = logits.log_softmax(-1)
    expected = everything[rows, tokens]
    (expected_gradient,) = torch.autograd.grad((expected * upstream).sum(), hidden)
    torch.testing.assert_close(log_probs, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    named = dict(zip(STATISTICS, statistics, strict=True))
    distribution = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(named["entropy"], distribution.entropy()[rows])
    torch.testing.assert_close(named["mean_logits"], logits.mean(-1)[rows])
    torch.testing.assert_close(named["log_sum_sq_probs"], distribution.probs.square().sum(-1).log()[rows])
    torch.testing.assert_close(named["largest"], everything.max(-1).values[rows])
    assert not any(values.requires_grad for values in statistics)


@pytest.mark.parametrize(
    ("config", "factor", "cap"),
    [
        (LlamaConfig(), 1.0, None),
        (GraniteConfig(logits_scaling=4.0), 0.25, None),
        (CohereConfig(logit_scale=0.0625), 0.0625, None),
        (Gemma2Config(final_logit_softcapping=30.0), 1.0, 30.0),
    ],
    ids=lambda value: value.model_type if isinstance(value, PretrainedConfig) else str(value),
)
def test_families_say_how_they_scale(config: PretrainedConfig, factor: float, cap: Any) -> None:
    assert LogitScale.of(config, 0.5) == LogitScale(factor, cap, 0.5)


def test_autocast_rounds_no_statistic() -> None:
    """In 16 bits the trainer computes under autocast."""
    hidden, weight = torch.randn(3, 4), torch.randn(11, 4)
    rows, tokens = torch.arange(3), torch.tensor([2, 10, 0])
    with torch.autocast("cpu", torch.bfloat16):
        found = TokenLogProbs.apply(hidden, weight, rows, tokens, SCALES[0], tuple(STATISTICS))
    half = torch.nn.functional.linear(hidden.bfloat16(), weight.bfloat16()).float()
    expected = [each(half, half.log_softmax(-1)) for each in STATISTICS.values()]
    for one, other in zip(found[1:], expected, strict=True):
        torch.testing.assert_close(one, other)
