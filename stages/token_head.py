"""From hidden states to log-probabilities of tokens, with no more than a few rows of logits in memory.

With logits z(W h) and p = softmax(z), the gradient of log p_token with respect to h is z' W at the token minus the mean
of z' W under p. The mean is needed once per hidden state, however many tokens follow it, and does not depend on what
comes back. So it is computed on the way forward, while p is there, and nothing is kept or computed again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

ELEMENTS = 2**23
"""Logits in memory at a time."""


@dataclass(frozen=True)
class LogitScale:
    """What happens to a head's outputs on the way to a distribution: cap * tanh(outputs * factor / cap) / temperature.

    Attributes:
        factor: Multiplies the outputs.
        cap: Bounds them; None does not.
        temperature: Divides them in the end.
    """

    factor: float
    cap: float | None
    temperature: float

    @classmethod
    def of(cls, config: PretrainedConfig, temperature: float) -> "LogitScale":
        """As a model's configuration says it, under the names that model families have for it."""
        text = config.get_text_config()
        names = ("logit_scale", "output_multiplier", "lm_head_multiplier")
        factor = next((value for name in names if (value := getattr(text, name, None)) is not None), 1.0)
        divisor = getattr(text, "logits_scaling", None) or 1.0
        return cls(factor / divisor, getattr(text, "final_logit_softcapping", None), temperature)

    def __call__(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits in float32."""
        logits = outputs.float() * (self.factor / self.temperature)
        if self.cap is not None:
            bound = self.cap / self.temperature
            logits = (logits / bound).tanh() * bound
        return logits

    def slope(self, logits: torch.Tensor) -> torch.Tensor | float:
        """The derivative of logits with respect to outputs."""
        slope = self.factor / self.temperature
        return slope if self.cap is None else slope * (1 - (logits * (self.temperature / self.cap)) ** 2)


STATISTICS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "entropy": lambda _, log_probs: -torch.linalg.vecdot(log_probs.exp(), log_probs),
    "mean_logits": lambda logits, _: logits.mean(-1),
    "log_sum_sq_probs": lambda _, log_probs: (2 * log_probs).logsumexp(-1),
    "largest": lambda _, log_probs: log_probs.amax(-1),
}
"""Of a distribution, from its logits and log-probabilities, each (states, vocabulary); the first in nats."""


class TokenLogProbs(torch.autograd.Function):
    """Log-probabilities of tokens; statistics of their distributions are for watching, and have no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        rows: torch.Tensor,
        tokens: torch.Tensor,
        scale: LogitScale,
        statistics: Sequence[str],
    ) -> tuple[torch.Tensor, ...]:
        """Go through the hidden states a few at a time.

        Args:
            ctx: Keeps what the gradient needs.
            hidden: (states, size).
            weight: Of the head, frozen: (vocabulary, size).
            rows: From which hidden state a token is predicted: (tokens,).
            tokens: (tokens,).
            scale: From the head's outputs to logits.
            statistics: Names of those to return.

        Returns:
            Log-probabilities, then every statistic, all (tokens,), in float32.
        """
        found = [hidden.new_empty(len(rows), dtype=torch.float32) for _ in ("log_probs", *statistics)]
        slopes = torch.empty_like(found[0])
        means = []
        size = max(1, ELEMENTS // len(weight))
        for start in range(0, len(hidden), size):
            here = (rows >= start) & (rows < start + size)
            row, token = rows[here] - start, tokens[here]
            logits = scale(torch.nn.functional.linear(hidden[start : start + size], weight))
            log_probs = logits.log_softmax(-1)
            found[0][here] = log_probs[row, token]
            with torch.autocast(hidden.device.type, enabled=False):  # it would round sums to 16 bits
                for values, name in zip(found[1:], statistics, strict=True):
                    values[here] = STATISTICS[name](logits, log_probs)[row]
            slope = scale.slope(logits)
            slopes[here] = slope[row, token] if isinstance(slope, torch.Tensor) else slope
            if ctx.needs_input_grad[0]:
                means.append(log_probs.exp_().mul_(slope).to(weight.dtype) @ weight)
        ctx.save_for_backward(weight, rows, tokens, slopes, *means)
        ctx.mark_non_differentiable(*found[1:])
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Token minus mean, weighted by what comes back and added up for every hidden state."""
        weight, rows, tokens, slopes, *means = ctx.saved_tensors
        mean = torch.cat(means)
        back = gradient.new_zeros(len(mean)).index_add_(0, rows, gradient)
        result = mean * -back[:, None].to(mean.dtype)
        result.index_add_(0, rows, weight[tokens] * (gradient * slopes)[:, None].to(mean.dtype))
        return result, None, None, None, None, None
