"""Evaluation: every model of the chain answers the same held-out rows, and the same rewards score the replies.

Models are compared as they would ship: folded, greedy. They are loaded one after the other, and every score is kept
per row, because the decision that follows is made from pairs of them. The decision itself is not made here.
"""

import contextlib
import gc
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conf.sections import EvaluateConfig
from rewards.scoring import RewardSet, failures
from stages.contract import ModelRef, StageContext, StageResult, Suite
from stages.fold import load_folded
from stages.generate import Completion
from stages.hardware import prepare
from stages.kept_replies import FILE
from stages.models import load_tokenizer
from stages.packed import pack
from stages.rows import Row, read_rows
from stages.samples import answer, expected, write_json_lines

STDERR = "stderr"
"""Last part of the name of a metric that holds the standard error of another."""


def run_evaluate(cfg: EvaluateConfig, ctx: StageContext) -> StageResult:
    """Score every model of `ctx.models` on every suite of `ctx.suites`.

    Metrics are `<suite>.<model>`, the mean of the suite's total (the accuracy, where the total is 0 or 1);
    `<suite>.<model>.stderr`, the standard error of that mean; `rows.<suite>`, the number of rows; and `failed_scores`,
    how many scores fell back to a reward's `error_value` (`failed_<reward>` of them for this reward).

    Raises:
        RewardError: A reward fails on a reply.
    """
    prepare(ctx.hardware, ctx.seed)
    models = models_to_compare(ctx.models)
    rows = {name: read_rows(suite.rows)[: suite.max_rows] for name, suite in ctx.suites.items()}
    records: list[dict[str, Any]] = []
    receipts: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        rewards = {name: stack.enter_context(RewardSet(suite.rewards)) for name, suite in ctx.suites.items()}
        for label, ref in models.items():
            replies, receipts[label] = _replies(label, ref, rows, cfg, ctx)
            for suite in ctx.suites:
                records += _scores(suite, label, rows[suite], replies[suite], rewards[suite])
    samples = [line for suite in ctx.suites for line in _side_by_side(suite, rows[suite][: cfg.n_samples], records)]
    kept = {label: receipt for label, receipt in receipts.items() if receipt is not None}
    (ctx.out_dir / "receipts.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return StageResult(
        model=ctx.start,
        metrics={
            **summary(records),
            **{f"rows.{name}": float(len(scored)) for name, scored in rows.items()},
            **failed(records, ctx.suites),
        },
        artifacts={
            "scores": write_json_lines(ctx.out_dir / "scores.jsonl", records),
            "samples": write_json_lines(ctx.out_dir / "samples.jsonl", samples),
            "receipts": ctx.out_dir / "receipts.json",
        },
    )


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


def summary(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean and standard error of the scores by suite and model; one row has no standard error."""
    groups: dict[str, list[float]] = {}
    for record in records:
        groups.setdefault(f"{record['suite']}.{record['model']}", []).append(record["score"])
    metrics: dict[str, float] = {}
    for name, scores in groups.items():
        metrics[name] = statistics.fmean(scores)
        if len(scores) > 1:
            metrics[f"{name}.{STDERR}"] = statistics.stdev(scores) / math.sqrt(len(scores))
    return metrics


def failed(records: Sequence[Mapping[str, Any]], suites: Mapping[str, Suite]) -> dict[str, float]:
    """`failed_scores`, and of them `failed_<name>` for every reward with `on_error: score`, over all suites."""
    errors = Counter(name for record in records for name in record.get("errors", ()))
    names = [name for suite in suites.values() for name in failures([], suite.rewards)]
    return {
        "failed_scores": float(errors.total()),
        **{name: float(errors[name.removeprefix("failed_")]) for name in names},
    }


def _replies(
    label: str, ref: ModelRef, rows: Mapping[str, list[Row]], cfg: EvaluateConfig, ctx: StageContext
) -> tuple[dict[str, list[Completion]], Mapping[str, Any] | None]:
    """One model's greedy replies by suite, and the receipt of its fold."""
    folded = load_folded(ref, ctx.hardware)
    model = pack(folded.model)
    tokenizer = load_tokenizer(ref)
    replies = {}
    for name, suite in ctx.suites.items():
        what = f"{name}: {label}"
        answers = answer(
            model,
            tokenizer,
            ref,
            rows[name],
            max_new_tokens=suite.max_new_tokens,
            batch_size=cfg.batch_size,
            seed=ctx.seed,
            progress=lambda done, total, what=what: ctx.progress(what, done, total),  # type: ignore[misc]
            keep=ctx.out_dir / FILE,
        )
        replies[name] = [completions[0] for completions in answers]
    receipt = folded.receipt
    del folded, model
    gc.collect()  # one model in memory at a time, but for the one that is kept aside
    return replies, receipt


def _scores(
    suite: str, label: str, rows: Sequence[Row], replies: Sequence[Completion], rewards: RewardSet
) -> Iterator[dict[str, Any]]:
    samples = [row.sample(reply.text) for row, reply in zip(rows, replies, strict=True)]
    scores = rewards.require_all(samples, lambda index: f"suite {suite}, row {index + 1}, answered by {label}")
    for number, (reply, score) in enumerate(zip(replies, scores, strict=True)):
        record = {"suite": suite, "row": number, "model": label, "score": score.total, "completion": reply.text}
        yield {**record, "errors": score.errors} if score.errors else record


def _side_by_side(suite: str, rows: Sequence[Row], records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    lines = [{"suite": suite, "prompt": row.prompt_text, "reference": expected(row), "replies": {}} for row in rows]
    for record in records:
        if record["suite"] == suite and record["row"] < len(lines):
            lines[record["row"]]["replies"][record["model"]] = record["completion"]
    return lines
