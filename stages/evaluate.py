"""Evaluation: every model of the chain answers the same held-out rows, and the same rewards score the replies.

Models are compared as they would ship: folded, and one after the other. Every score is kept per row, because the
decision that follows is made from pairs of them. The decision itself is not made here.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from conf.measuring import EvaluateConfig, ScoringConfig
from stages.contract import ModelRef, StageContext, StageResult
from stages.hardware import prepare
from stages.score_metrics import drift_metrics, failed, gains, summary
from stages.score_table import write_side_by_side, write_table
from stages.scores import Scored, score_models


def run_evaluate(cfg: EvaluateConfig, ctx: StageContext) -> StageResult:
    """Score every model of `ctx.models` on every suite of `ctx.suites`.

    Metrics are those of `write_scores`, and `gain.<suite>.<model>`, by how much a model's mean score is more than that
    of the model its last adapter was trained from (with `.stderr`).

    Raises:
        RewardError: A reward fails on a reply.
    """
    prepare(ctx.hardware, ctx.seed)
    models = models_to_compare(ctx.models)
    scored = score_models(models, cfg, ctx)
    metrics, artifacts = write_scores(scored, cfg, ctx)
    return StageResult(model=ctx.start, metrics={**metrics, **gains(scored.rows, models)}, artifacts=artifacts)


def write_scores(scored: Scored, cfg: ScoringConfig, ctx: StageContext) -> tuple[dict[str, float], dict[str, Path]]:
    """Leave scores in the stage's directory; returns their metrics and the files.

    Metrics are those of `stages.score_metrics.summary`; `noise.<suite>`, how much the start model's mean score moves
    when it is measured again; and `drift.<model>` (with `.stderr`), where the divergence from the original base was
    measured.
    """
    receipts = ctx.out_dir / "receipts.json"
    receipts.write_text(json.dumps(scored.receipts, indent=2) + "\n", encoding="utf-8")
    metrics = {
        **summary(scored.rows),
        **failed(scored.rows, ctx.suites),
        **{f"noise.{suite}": noise for suite, noise in scored.noise.items()},
        **drift_metrics(scored.drift),
    }
    artifacts = {
        "scores": write_table(ctx.out_dir / "scores.parquet", scored.rows, ctx.suites),
        "samples": write_side_by_side(ctx.out_dir / "samples.jsonl", scored.rows, ctx.suites, cfg.n_samples),
        "receipts": receipts,
    }
    return metrics, artifacts


def models_to_compare(models: Mapping[str, ModelRef]) -> dict[str, ModelRef]:
    """The models under short labels, each once: the baseline, the chain, further models, the start model.

    A model that was seen already (by identity) keeps its first label. The baseline is called `base` when it is the
    start model without any adapter.
    """
    start = models["start"]
    ordered: list[tuple[str, ModelRef]] = []
    if "baseline" in models:
        baseline = models["baseline"]
        ordered.append(("base" if baseline.identity == start.base.identity else "baseline", baseline))
    for prefix in ("chain.", "models."):
        ordered += [(key.removeprefix(prefix), ref) for key, ref in models.items() if key.startswith(prefix)]
    ordered.append(("start", start))
    chosen: dict[str, ModelRef] = {}
    for label, ref in ordered:
        if all(ref.identity != other.identity for other in chosen.values()):
            chosen[label if label not in chosen else f"{label}-{ref.identity[:8]}"] = ref
    return chosen
