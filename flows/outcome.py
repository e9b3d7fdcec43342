"""What a run came to, as a person reads it: the steps with their times, and one table of the evaluation's scores."""

from collections.abc import Mapping
from typing import Any

from flows.console import clock, table

EXIT_CODES = {None: 0, "ship": 0, "hold": 3, "inconclusive": 4, "stop": 5}
"""Exit code of a completed run by its verdict."""


_MAIN = {"probe": ("success_rate", "success_low", "success_high", "reward", "truncated")}
"""The numbers of a stage that has a report for the others."""


def outcome_text(record: Mapping[str, Any]) -> str:
    """The record of a run as text."""
    reports = [step["report"] for step in record["steps"].values()]
    parts = reports if len(reports) == 1 and reports[0] else [table(step_rows(record))]
    scores = score_rows(record)
    if scores:
        parts.append(table(scores))
    return "\n\n".join(parts)


def step_rows(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row per step: what it is, how it ended, how long it took, and its main numbers."""
    return [
        {
            "step": name,
            "stage": step["stage"],
            "start": step["start"],
            "state": step["state"],
            "time": clock(step["seconds"]) if step["seconds"] is not None else "",
            "result": _summary(step),
        }
        for name, step in record["steps"].items()
    ]


def score_rows(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row per evaluated model and suite, from the metrics of the evaluate steps."""
    rows = []
    for name, step in record["steps"].items():
        if step["stage"] == "evaluate":
            rows += [
                {
                    "step": name,
                    "suite": suite,
                    "model": model,
                    "score": f"{mean:.3f}",
                    "stderr": f"{stderr:.3f}",
                    "rows": f"{rows_scored:.0f}",
                }
                for suite, model, mean, stderr, rows_scored in scores(step["metrics"])
            ]
    return rows


def scores(metrics: Mapping[str, float]) -> list[tuple[str, str, float, float, float]]:
    """Suite, model, mean score, standard error and rows, from metrics named `<suite>.<model>[.stderr]`."""
    found = []
    for name, value in metrics.items():
        suite, _, model = name.partition(".")
        if model and f"{name}.stderr" in metrics:
            found.append((suite, model, value, metrics[f"{name}.stderr"], metrics[f"rows.{suite}"]))
    return found


def _summary(step: Mapping[str, Any]) -> str:
    if step["error"]:
        return str(step["error"])
    if step["stage"] == "evaluate":
        return ""
    names = _MAIN.get(step["stage"], step["metrics"])
    return "  ".join(f"{name} {step['metrics'][name]:.4g}" for name in names if name in step["metrics"])
