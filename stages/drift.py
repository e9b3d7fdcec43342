"""Drift: how far a model has moved from the original base, over all stages of its chain together.

What a stage watches is the divergence from its own start, and folding makes that the next stage's reference: many small
steps can go far and none of them shows it. So a model is compared with the model that the whole chain began with.
"""

import inspect
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import numpy
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from conf.errors import UserError
from conf.schema import SuiteRole
from conf.sections import ScoringConfig
from stages.chat import prompt_ids
from stages.contract import ModelRef, StageContext, Suite
from stages.kept_replies import FILE
from stages.models import evaluating
from stages.rows import Row, read_rows
from stages.samples import answer

LONGEST = 32
"""Tokens of a reply that are looked at; they bound the disk space (4 bytes for each of the vocabulary, per token)."""


@dataclass(frozen=True)
class Drift:
    """KL(model || original) in nats per token, and its standard error over replies (None where there is one)."""

    mean: float
    stderr: float | None


@dataclass(frozen=True)
class Reply:
    """A prompt and what was replied to it, as tokens."""

    prompt: list[int]
    tokens: list[int]


class DriftMeter:
    """Measures the drift of models that are in memory one after the other.

    KL(model || original) is an expectation over the model's own replies, so each model first draws one reply per prompt
    at temperature 1. Along a reply every position's divergence is computed over the whole vocabulary rather than from
    the one token that was drawn (Rao-Blackwellised: Amini, Vieira and Cotterell 2025, arXiv:2504.10637): unbiased as
    well, with less variance, never negative, and 0 for the original itself. Until the original is in memory the model's
    log-probabilities wait in a file without a name, which is gone when the process ends, however it does.
    """

    def __init__(self, cfg: ScoringConfig, ctx: StageContext) -> None:
        self.original = ctx.models.get("original", ctx.start.base)
        self._ctx, self._batch_size = ctx, cfg.batch_size
        self._rows = drift_rows(ctx.suites, cfg.drift_rows)
        self._read: dict[str, tuple[list[Reply], IO[bytes]]] = {}

    def __bool__(self) -> bool:
        """Whether there are prompts to measure with."""
        return bool(self._rows)

    def read(self, label: str, ref: ModelRef, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Let a model reply to the prompts, and keep its distributions until `finish`."""
        replies: list[Reply] = []
        for suite, rows in self._rows.items():
            replies += self._draw(label, suite, rows, ref, model, tokenizer)
        file = tempfile.TemporaryFile(dir=self._ctx.out_dir)  # noqa: SIM115  (`finish` closes it)
        for reply in replies:
            numpy.save(file, log_probs(model, reply).numpy())
        file.seek(0)
        self._read[label] = (replies, file)

    def finish(self, original: PreTrainedModel) -> dict[str, Drift]:
        """The drift of every model that was read; what was kept of them is let go.

        Args:
            original: The model that `self.original` refers to.

        Raises:
            UserError: It has another vocabulary than one of the models.
        """
        found = {}
        for label, (replies, file) in self._read.items():
            with file:
                sums = [divergence(torch.from_numpy(numpy.load(file)), log_probs(original, reply)) for reply in replies]
            found[label] = estimate(sums, [len(reply.tokens) for reply in replies])
        self._read.clear()
        return found

    def _draw(
        self,
        label: str,
        suite: str,
        rows: Sequence[Row],
        ref: ModelRef,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
    ) -> list[Reply]:
        """One reply to each of a suite's prompts, from the model's own distribution."""
        completions = answer(
            model,
            tokenizer,
            ref,
            rows,
            max_new_tokens=min(self._ctx.suites[suite].max_new_tokens, LONGEST),
            temperature=1.0,
            batch_size=self._batch_size,
            seed=self._ctx.seed,
            progress=lambda done, total: self._ctx.progress(f"drift: {label}", done, total),
            keep=self._ctx.out_dir / FILE,
        )
        prompts = [prompt_ids(tokenizer, ref.config, row) for row in rows]
        return [Reply(prompt, list(replies[0].ids)) for prompt, replies in zip(prompts, completions, strict=True)]


def drift_rows(suites: Mapping[str, Suite], limit: int) -> dict[str, list[Row]]:
    """The first rows of the suites of role `general`, `limit` in all; suites without any are left out."""
    chosen: dict[str, list[Row]] = {}
    for name, suite in suites.items():
        if suite.role is SuiteRole.general and limit > 0:
            chosen[name] = read_rows(suite.rows)[: suite.max_rows][:limit]
            limit -= len(chosen[name])
    return {name: rows for name, rows in chosen.items() if rows}


@torch.no_grad()
def log_probs(model: PreTrainedModel, reply: Reply) -> torch.Tensor:
    """The model's log-probabilities of every next token along a reply: (tokens of the reply, vocabulary), in float32.

    One reply at a time: no padding, and no more than its own logits in memory.
    """
    ids = torch.tensor([reply.prompt + reply.tokens[:-1]], device=model.device)
    wanted = len(reply.tokens)
    few = {"logits_to_keep": wanted} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    with evaluating(model):
        logits: torch.Tensor = model(input_ids=ids, use_cache=False, **few).logits[0, -wanted:]
    return logits.float().log_softmax(-1).cpu()


def divergence(own: torch.Tensor, original: torch.Tensor) -> float:
    """The sum over positions of KL(own || original), from log-probabilities: (positions, vocabulary).

    Raises:
        UserError: The vocabularies differ.
    """
    if own.shape != original.shape:
        raise UserError(
            f"drift_rows: a model has {own.shape[-1]} tokens in its vocabulary and the original base "
            f"{original.shape[-1]}, so their distributions cannot be compared; set drift_rows=0 to leave drift out"
        )
    own, original = own.double(), original.double()
    return float((own.exp() * (own - original).masked_fill(own.isneginf(), 0.0)).sum())


def estimate(sums: Sequence[float], lengths: Sequence[int]) -> Drift:
    """Divergence per token, as the ratio of two means over replies, with its standard error.

    Replies are drawn independently, the tokens of one are not, so the error is that of a ratio estimator over replies
    (Cochran 1977, Sampling Techniques, section 2.11).
    """
    count, tokens = len(sums), sum(lengths)
    mean = sum(sums) / tokens
    if count < 2:
        return Drift(mean, None)
    squares = sum((total - mean * length) ** 2 for total, length in zip(sums, lengths, strict=True))
    return Drift(mean, math.sqrt(squares * count / (count - 1)) / tokens)
