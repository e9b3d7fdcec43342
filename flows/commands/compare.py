"""`ratchet compare RUN RUN...`: models as rows, scored by the same rewards on the same prompts.

For each what made it, its scores, and the last numbers of its training. The best score of a suite is marked where it is
surely better than all others.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from conf.steps import STAGES
from flows.references import FoundRun, find_pipeline
from flows.scores.model_scores import ModelScores, NamedModel, Scores
from stages.table import table

_SHOWN = ("step", "loss", "reward", "kl", "margin")


def main(arguments: argparse.Namespace) -> int:
    """Print the comparison; returns the exit code."""
    bench = ModelScores(arguments)
    models = [bench.find(text) for run in arguments.run for text in _steps(bench, run)]
    models = list({each.name: each for each in models}.values())
    scores = bench.known(models) if arguments.known else bench.score(models)
    best = _best(models, bench.suites, scores)
    rows = [{**_made(each), "scores": _scores(each, scores, best), **_last(each.run)} for each in models]
    if arguments.json:
        print(json.dumps(rows))
    else:
        print(table([_cells(row, bench.suites, rows) for row in rows]))
        if any(best.values()):
            print("\n* better than every other by more than chance: the 95% intervals of the differences lie above 0")
    return 0


def _steps(bench: ModelScores, text: str) -> list[str]:
    """Of a whole pipeline run, every step that trained, else its last one."""
    record = find_pipeline(bench.runs_dir, text)
    if record is None:
        return [text]
    trained = [name for name, step in record["steps"].items() if step["store"] and STAGES[step["stage"]].trains]
    return [f"{record['id']}/{name}" for name in trained] or [text]


def _made(named: NamedModel) -> dict[str, Any]:
    """What is known of how a model was made."""
    run = named.run
    if run is None:
        return {"run": named.name, "stage": "", "start": "", "method": "", "rows": None, "adapters": _adapters(named)}
    stage = run.entry.id.rsplit("-", 1)[0]
    inputs, saved = run.entry.saved("inputs.json") or {}, run.entry.saved("result.json") or {}
    methods = {"preference": inputs.get("preference", {}).get("method", ""), "reinforce": "grpo"}
    return {
        "run": named.name,
        "stage": stage,
        "start": run.record["steps"][run.step]["start"] if run.record and run.step else "",
        "method": methods.get(stage, stage if stage in STAGES and STAGES[stage].trains else ""),
        "rows": saved.get("metrics", {}).get("train_rows"),
        "adapters": _adapters(named),
    }


def _adapters(named: NamedModel) -> int:
    return len(named.model.adapters)


def _best(models: Sequence[NamedModel], suites: Sequence[str], scores: Scores) -> dict[str, str | None]:
    """By suite, the identity of the model that is surely the best, if one is."""
    from stages.score_intervals import winner

    return {
        suite: winner(
            {each.model.identity: scores[suite, each.name].by_row for each in models if (suite, each.name) in scores}
        )
        for suite in suites
    }


def _scores(named: NamedModel, scores: Scores, best: dict[str, str | None]) -> dict[str, Any]:
    """One model's scores by suite."""
    own = {suite: score for (suite, name), score in scores.items() if name == named.name}
    return {
        suite: {
            "mean": score.mean,
            "low": score.low,
            "high": score.high,
            "rows": score.rows,
            "tokens": score.tokens,
            "best": best[suite] == named.model.identity,
        }
        for suite, score in own.items()
    }


def _last(run: FoundRun | None) -> dict[str, float]:
    """The last numbers of a training."""
    rows = run.entry.progress()[-1:] if run else []
    return {name: value for row in rows for name, value in row.items() if name in _SHOWN}


def _cells(row: dict[str, Any], suites: Sequence[str], rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    made = {name: _number(value) for name, value in row.items() if name in ("run", "stage", "start", "method", "rows")}
    last = [name for name in _SHOWN if any(name in each for each in rows)]
    scored = {suite: _score(row["scores"].get(suite)) for suite in suites}
    return {**made, **scored, **{name: _number(row.get(name)) for name in last}}


def _score(score: dict[str, Any] | None) -> str:
    """`0.663 (0.61 to 0.71) *`; nothing where it is not known."""
    if score is None:
        return ""
    return f"{score['mean']:.3f} ({score['low']:.2f} to {score['high']:.2f}){' *' if score['best'] else ''}"


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
