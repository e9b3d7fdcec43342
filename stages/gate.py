"""The gate: the start model ships when it does its task better than the baseline, and nothing that is guarded worse."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from conf.measuring import GateConfig
from stages.contract import ModelRef, StageContext, StageResult, Suite
from stages.decision import Decision, Rules, Scores, SuiteScores, decide
from stages.evaluate import write_scores
from stages.hardware import prepare
from stages.rows import Row, read_rows
from stages.scores import Scored, score_models
from stages.splits import normalised_prompt
from stages.table import table

CANDIDATE = "candidate"
"""Label of the start model among the others, which are called `baseline` and `anchor`."""


def run_gate(cfg: GateConfig, ctx: StageContext) -> StageResult:
    """Score the start model, the baseline and the anchor on every suite, and decide (see `stages.decision`).

    The verdict is `ship`, `hold` or `inconclusive`. Metrics are those of an evaluation and, per comparison,
    `gain.<suite>.<baseline or anchor>` with `.low` and `.high`, the bounds of its interval.

    Raises:
        RewardError: A reward fails on a reply.
    """
    prepare(ctx.hardware, ctx.seed)
    models = compared(ctx)
    scored = score_models(models, cfg, ctx)
    rules = Rules(
        min_gain=cfg.min_gain,
        confidence=cfg.confidence,
        resamples=cfg.resamples,
        seed=ctx.seed,
        max_drift=cfg.max_drift,
    )
    drift = scored.drift.get(CANDIDATE)
    decision = decide(list(_suites(scored, models, ctx)), rules, drift.mean if drift else None)
    path = ctx.out_dir / "decision.json"
    path.write_text(json.dumps(_plain(decision), indent=2) + "\n", encoding="utf-8")
    metrics, artifacts = write_scores(scored, cfg, ctx)
    return StageResult(
        model=ctx.start,
        metrics={**metrics, **_gains(decision)},
        artifacts={**artifacts, "decision": path},
        verdict=decision.verdict,
        report=report(decision),
    )


def compared(ctx: StageContext) -> dict[str, ModelRef]:
    """The models that a gate scores, by label."""
    others = {label: ctx.models[label] for label in ("baseline", "anchor") if label in ctx.models}
    return {**others, CANDIDATE: ctx.start}


def _suites(scored: Scored, models: dict[str, ModelRef], ctx: StageContext) -> Iterator[SuiteScores]:
    for name, suite in ctx.suites.items():
        asked = questions(suite)
        scores = {model: _by_question(scored.of(name, model), asked) for model in models}
        if len(set(asked)) < len(asked):
            ctx.say(f"{name}: {len(asked)} rows ask {len(set(asked))} questions; those that ask the same count as one")
        yield SuiteScores(
            name=name,
            role=suite.role,
            tolerance=suite.tolerance,
            candidate=scores[CANDIDATE],
            baseline=scores["baseline"],
            anchor=scores.get("anchor"),
            noise=scored.noise.get(name, 0.0),
        )


def questions(suite: Suite) -> list[str]:
    """What every scored row of a suite asks: rows with the same one get the same reply, and are no further evidence.

    Prompts are the same that are never divided by a split, under the same system message. What a task of lm-eval asks
    is not all in its prompt; each of its rows is a question of its own.
    """
    rows = read_rows(suite.rows, suite.max_rows)
    if suite.lm_eval:
        return [str(number) for number in range(len(rows))]
    return [json.dumps([normalised_prompt(row), *_system(row)]) for row in rows]


def _system(row: Row) -> Iterator[str]:
    return (message["content"] for message in row.conversation if message["role"] == "system")


def _by_question(scores: Scores, asked: Sequence[str]) -> list[list[float]]:
    """The scores of every question, as those of further samples of one row."""
    found: dict[str, list[float]] = {}
    for question, samples in zip(asked, scores, strict=True):
        found.setdefault(question, []).extend(samples)
    return list(found.values())


def _gains(decision: Decision) -> dict[str, float]:
    gains: dict[str, float] = {}
    for each in decision.comparisons:
        name = f"gain.{each.suite}.{each.against}"
        gains |= {name: each.after - each.before, f"{name}.low": each.low, f"{name}.high": each.high}
    return gains


def _plain(decision: Decision) -> dict[str, Any]:
    comparisons = [{**asdict(each), "role": each.role.name} for each in decision.comparisons]
    return {**asdict(decision), "comparisons": comparisons}


def report(decision: Decision) -> str:
    """The decision for a person: a table of the comparisons, the verdict, and its reasons."""
    rows = [
        {
            "suite": each.suite,
            "role": each.role.name,
            "against": each.against,
            "rows": str(each.rows),
            "before": f"{each.before:.3f}",
            "after": f"{each.after:.3f}",
            "gain": f"{each.after - each.before:+.3f}",
            "interval": f"{each.low:+.3f} to {each.high:+.3f}",
            "detectable": f"{each.detectable:.3f}",
            "outcome": each.outcome,
        }
        for each in decision.comparisons
    ]
    return "\n".join([table(rows), "", f"{decision.verdict.upper()}:", *(f"- {each}" for each in decision.reasons)])
