"""Drift: how far a model has moved from the original base, over all stages of its chain together.

What a stage watches is the divergence from its own start, and folding makes that the next stage's reference: many small
steps can go far and none of them shows it. So a model is compared with the model that the whole chain began with.
"""

import copy
import inspect
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy
import torch
from transformers import DynamicCache, PreTrainedModel

from conf.errors import UserError
from conf.measuring import ScoringConfig
from conf.schema import SuiteRole
from stages import sampling
from stages.cache import file_sha256
from stages.chat import prompt_ids
from stages.contract import StageContext, Suite
from stages.kept_replies import FILE
from stages.kept_scores import KeptScores
from stages.models import evaluating
from stages.prefix_tree import common_prefix
from stages.rows import Row, read_rows
from stages.samples import answer
from stages.suite_scores import LoadedModel

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
    """Measures how far models are from the original.

    KL(model || original) is an expectation over the model's own replies, so a model first draws one reply per prompt at
    temperature 1. Along a reply every position's divergence is computed over the whole vocabulary rather than from the
    one token that was drawn (Rao-Blackwellised: Amini, Vieira and Cotterell 2025, arXiv:2504.10637): unbiased as well,
    with less variance, never negative, and 0 for the original itself.
    """

    def __init__(self, cfg: ScoringConfig, ctx: StageContext) -> None:
        self.original = ctx.models.get("original", ctx.start.base)
        self._cfg, self._ctx = cfg, ctx
        self._rows = drift_rows(ctx.suites, cfg.drift_rows)
        known = all(ctx.suites[name].id for name in self._rows)
        self._kept = KeptScores(ctx.scores if known else None)

    def __bool__(self) -> bool:
        """Whether there are prompts to measure with."""
        return bool(self._rows)

    def measure(self, model: LoadedModel, label: str) -> Drift:
        """The drift of a model, which is not in memory any more afterwards; what is kept of it is not computed again.

        Raises:
            UserError: It has another vocabulary than the original.
        """
        key = {
            "original": self.original.identity,
            "prompts": [[self._ctx.suites[name].id, len(rows)] for name, rows in self._rows.items()],
            "batch_size": self._cfg.batch_size,
            "seed": self._ctx.seed,
            "code": file_sha256(Path(__file__)),  # of all else, the suites' ids tell
            **model.key,
        }
        what, count = f"drift: {label}", sum(map(len, self._rows.values()))

        def on_wait() -> None:
            self._ctx.progress(f"{what}, waiting for another process", 0, count)

        return Drift(**self._kept.get(key, lambda: asdict(self._measure(model, what)), on_wait))

    def _measure(self, model: LoadedModel, what: str) -> Drift:
        """One model is in memory at a time.

        The model's log-probabilities wait for the original's in a file without a name, which is gone when the process
        ends, however it does.
        """
        if model.ref.identity == self.original.identity:
            return Drift(0.0, 0.0)
        replies = [reply for suite in self._rows for reply in self._draw(model, suite, what)]
        with tempfile.TemporaryFile(dir=self._ctx.out_dir) as file:
            for own in log_probs(model.model, replies):
                numpy.save(file, own.numpy())
            model.release()
            file.seek(0)
            original = LoadedModel(self.original, self._ctx.hardware)
            there = log_probs(original.model, replies)
            sums = [divergence(torch.from_numpy(numpy.load(file)), others) for others in there]
            original.release()
        return estimate(sums, [len(reply.tokens) for reply in replies])

    def _draw(self, model: LoadedModel, suite: str, what: str) -> list[Reply]:
        """One reply to each of a suite's prompts, from the model's own distribution."""
        rows = self._rows[suite]
        completions = answer(
            model.model,
            model.tokenizer,
            model.ref,
            rows,
            max_new_tokens=min(self._ctx.suites[suite].max_new_tokens, LONGEST),
            temperature=1.0,
            batch_size=self._cfg.batch_size,
            seed=self._ctx.seed,
            progress=lambda done, total: self._ctx.progress(what, done, total),
            keep=self._ctx.out_dir / FILE,
        )
        prompts = [prompt_ids(model.tokenizer, model.ref.config, row) for row in rows]
        return [Reply(prompt, list(replies[0].ids)) for prompt, replies in zip(prompts, completions, strict=True)]


def drift_rows(suites: Mapping[str, Suite], limit: int) -> dict[str, list[Row]]:
    """The first rows of the suites of role `general`, `limit` in all; suites without any are left out."""
    chosen: dict[str, list[Row]] = {}
    for name, suite in suites.items():
        if suite.role is SuiteRole.general and limit > 0:
            chosen[name] = read_rows(suite.rows, suite.max_rows)[:limit]
            limit -= len(chosen[name])
    return {name: rows for name, rows in chosen.items() if rows}


@torch.no_grad()
def log_probs(model: PreTrainedModel, replies: Sequence[Reply]) -> Iterator[torch.Tensor]:
    """A model's log-probabilities of every next token along replies: per reply (its tokens, vocabulary), in float32.

    One reply at a time, so that nothing is padded and only its own logits are in memory. What all prompts begin with,
    such as a system message, is computed once.
    """
    prompts = [tuple(reply.prompt) for reply in replies]
    shared = min(common_prefix(min(prompts), max(prompts)), min(map(len, prompts)) - 1)
    if not sampling.supports(model):
        shared = 0
    few = "logits_to_keep" in inspect.signature(model.forward).parameters
    with evaluating(model):
        cache = DynamicCache(config=model.config) if shared else None
        if cache is not None:
            model(input_ids=_batch(model, prompts[0][:shared]), cache=cache, use_cache=True, logits_to_keep=1)
        for reply in replies:
            wanted = len(reply.tokens)
            known = {"cache": copy.deepcopy(cache), "use_cache": True} if shared else {"use_cache": False}
            ids = _batch(model, [*reply.prompt, *reply.tokens[:-1]][shared:])
            logits = model(input_ids=ids, **known, **({"logits_to_keep": wanted} if few else {})).logits[0, -wanted:]
            yield logits.float().log_softmax(-1).cpu()


def _batch(model: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    return torch.tensor([tokens], device=model.device)


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
