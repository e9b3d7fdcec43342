"""Scores of models on suites, row by row: made once for every model and suite, and found again by all who ask.

Every model sees the same rows, prompts, templates, limits and decoding, folded as it would be exported. What
determines a score (`stages.suite_scores`) is its key in `StageContext.scores`; labels, roles and tolerances are not.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from conf.measuring import ScoringConfig
from stages.contract import ModelRef, StageContext
from stages.drift import Drift, DriftMeter
from stages.harness_scores import harness_rows
from stages.judge import judged
from stages.kept_scores import KeptScores
from stages.suite_scores import LoadedModel, OpenSuite, RowScore, score_rows

__all__ = ["RowScore", "Scored", "score_models"]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What `score_models` found.

    Attributes:
        rows: Of every model on every suite, in the order of suites, models, rows, samples.
        noise: By suite, how much the start model's mean score moves when its rows are answered in other batches (see
            `noise_of_mean`).
        drift: By label, the divergence from the original base; empty where no suite has the role `general`.
        receipts: By label, what the model's fold proves about itself.
    """

    rows: Sequence[RowScore]
    noise: Mapping[str, float]
    drift: Mapping[str, Drift]
    receipts: Mapping[str, Mapping[str, Any]]

    def of(self, suite: str, model: str) -> list[list[float]]:
        """The scores of one model on one suite: per row those of its samples."""
        return self._by_row.get((suite, model), [])

    @cached_property
    def _by_row(self) -> dict[tuple[str, str], list[list[float]]]:
        found: dict[tuple[str, str], list[list[float]]] = {}
        for row in self.rows:
            scores = found.setdefault((row.suite, row.model), [])
            if row.sample == 0:
                scores.append([])
            scores[-1].append(row.score)
        return found


class NotKnown(Exception):
    """Scores are not there, and were not to be made."""


def score_models(
    models: Mapping[str, ModelRef], cfg: ScoringConfig, ctx: StageContext, *, known_only: bool = False
) -> Scored:
    """Score models, given by label, on every suite of `ctx.suites`; what `ctx.scores` has is not computed again.

    A suite with one sample per row is answered greedily; of several, each is drawn with the context's seed, whatever
    other models and suites there are.

    Raises:
        RewardError: A reward fails on a reply.
        EndpointError: A judge does not answer, or without a verdict.
        NotKnown: With `known_only`, something would have to be computed.
    """
    found: dict[tuple[str, str], list[RowScore]] = {}
    noise: dict[str, float] = {}
    drift: dict[str, Drift] = {}
    receipts: dict[str, Mapping[str, Any]] = {}
    with ExitStack() as stack:
        suites = [OpenSuite(name, suite, stack) for name, suite in ctx.suites.items()]
        scorer, meter = _Scorer(cfg, ctx, known_only), DriftMeter(cfg, ctx)
        for label, ref in models.items():
            model = LoadedModel(ref, ctx.hardware)
            for suite in suites:
                made = scorer.score(model, label, suite)
                found[suite.name, label] = [RowScore(suite=suite.name, model=label, **row) for row in made["rows"]]
                if made["receipt"]:
                    receipts[label] = made["receipt"]
                if ref.identity == ctx.start.identity and suite.name not in noise:
                    noise[suite.name] = scorer.noise(model, label, suite)
            if not model.is_loaded:
                ctx.say(f"{label}: its scores are known")
            if meter:
                drift[label] = meter.measure(model, label)
            model.release()
    return Scored(
        rows=judged([row for suite in suites for label in models for row in found[suite.name, label]], models, ctx),
        noise=noise,
        drift=drift,
        receipts=receipts,
    )


def noise_of_mean(scores: Sequence[float], again: Sequence[float], rows: int) -> float:
    """Standard deviation of what measuring again does to a mean score over `rows` rows.

    With other batches come other rounding errors, which can turn a greedy choice between two tokens. They strike row by
    row, independently and up as well as down. So the mean over n rows moves by a sum of independent errors: its
    variance is E[d^2] / n, estimated from the differences d of the rows that were measured twice.
    """
    squares = [(one - other) ** 2 for one, other in zip(scores, again, strict=True)]
    return math.sqrt(math.fsum(squares) / len(squares) / rows)


class _Scorer:
    """Scores of this stage's suites, kept or made."""

    def __init__(self, cfg: ScoringConfig, ctx: StageContext, known_only: bool) -> None:
        self._cfg, self._ctx, self._known_only = cfg, ctx, known_only
        self._kept, self._unkept = KeptScores(ctx.scores), KeptScores(None)

    def score(self, model: LoadedModel, label: str, suite: OpenSuite) -> dict[str, Any]:
        """The `rows` of a model on a suite, and its fold's `receipt`."""
        return self._get(model, label, suite, len(suite.rows), self._cfg.batch_size)

    def noise(self, model: LoadedModel, label: str, suite: OpenSuite) -> float:
        """Of the mean score, where replies are greedy; drawn ones differ anyway, which intervals account for."""
        count = min(self._cfg.recheck, len(suite.rows))
        if count == 0 or suite.suite.samples > 1 or suite.suite.judge:
            return 0.0
        first = self.score(model, label, suite)["rows"][:count]
        again = self._get(model, f"{label}, again", suite, count, self._cfg.batch_size // 2 or 2)["rows"]
        return noise_of_mean([row["score"] for row in first], [row["score"] for row in again], len(suite.rows))

    def _get(self, model: LoadedModel, label: str, suite: OpenSuite, count: int, batch_size: int) -> dict[str, Any]:
        """Scores of the first `count` rows; all that can change them is the key.

        The size of a batch can: the order in which a processor adds up depends on it.
        """
        what = f"{suite.name}: {label}"
        key = {
            "suite": suite.suite.id or suite.name,
            "rows": count,
            "batch_size": batch_size,
            "seed": self._ctx.seed if suite.suite.samples > 1 else None,
            **model.key,
        }

        def make() -> dict[str, Any]:
            if self._known_only:
                raise NotKnown(what)
            if suite.suite.lm_eval:
                self._ctx.progress(what, 0, count)
                rows = harness_rows(model, suite.name, suite.suite.lm_eval, batch_size, count)
            else:
                rows = score_rows(model, suite, suite.rows[:count], batch_size, label, self._ctx)
            return {"rows": rows, "receipt": model.receipt}

        def on_wait() -> None:
            if self._known_only:
                raise NotKnown(what)
            self._ctx.progress(f"{what}, waiting for another process", 0, count)

        kept = self._kept if suite.suite.id else self._unkept
        value: dict[str, Any] = kept.get(key, make, on_wait)
        return value
