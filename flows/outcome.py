"""What a run came to, as a person reads it: the steps with their times, and one table of the evaluation's scores."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from flows.console import clock
from stages.table import table

EXIT_CODES = {None: 0, "ship": 0, "hold": 3, "inconclusive": 4, "stop": 5}
"""Exit code of a completed run by its verdict."""

VERDICTS = {"ship": "Shipped", "hold": "Held", "inconclusive": "Inconclusive"}
"""What Prefect calls the completed state of a gate, and of a run that ended at one."""


def worst(verdicts: Iterable[str | None]) -> str | None:
    """The verdict of a run from those of its steps: with several gates, that of the one that went worst."""
    return max((verdict for verdict in verdicts if verdict in EXIT_CODES), key=_BADNESS.index, default=None)


_BADNESS = (None, "ship", "inconclusive", "hold", "stop")


_MAIN = {
    "audit": ("reference", "largest_share"),
    "probe": ("success_rate", "success_low", "success_high", "reward", "truncated"),
}
"""The numbers of a stage that has a report for the others."""


def outcome_text(record: Mapping[str, Any]) -> str:
    """The record of a run as text."""
    reports = [step["report"] for step in record["steps"].values()]
    parts = reports if len(reports) == 1 and reports[0] else [table(step_rows(record))]
    if record["verdict"] == "stop" and len(reports) > 1:
        parts.append(f"Stopped by {_last_done(record)}, whose report says why.")
    if record["verdict"] in VERDICTS:
        gates = [name for name, step in record["steps"].items() if step["stage"] == "gate" and step["report"]]
        parts.append(f"{VERDICTS[record['verdict']]}: the report of {', '.join(gates)} says why.")
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
    found = list(scores(record))
    drifted = any(score.drift for score in found)
    return [
        {
            "step": score.step,
            "suite": score.suite,
            "model": score.model,
            "score": f"{score.mean:.3f}",
            "stderr": "" if score.stderr is None else f"{score.stderr:.3f}",
            "rows": f"{score.rows:.0f}",
            "gain": _number(score.gain, "+"),
            **({"drift": _number(score.drift)} if drifted else {}),
        }
        for score in found
    ]


class ModelScore(NamedTuple):
    """What an evaluate step says of one model on one suite: mean score, its standard error, number of rows.

    One row has no standard error.
    `gain` is what the model's last training brought, and the standard error of that on the same rows; `drift` is the
    divergence from the original base (of the model, on the general prompts), and the standard error of that.
    """

    step: str
    suite: str
    model: str
    mean: float
    stderr: float | None
    rows: float
    gain: tuple[float, float] | None = None
    drift: tuple[float, float] | None = None


def scores(record: Mapping[str, Any]) -> Iterator[ModelScore]:
    """The scores of a run, from the evaluate steps' metrics, which are named `<suite>.<model>[.stderr]`."""
    for step_name, step in record["steps"].items():
        metrics = step["metrics"] if step["stage"] == "evaluate" else {}
        for name, value in metrics.items():
            suite, _, model = name.partition(".")
            if f"tokens.{name}" in metrics:
                error, rows = metrics.get(f"{name}.stderr"), metrics[f"rows.{suite}"]
                beside = [_with_error(metrics, f"gain.{name}"), _with_error(metrics, f"drift.{model}")]
                yield ModelScore(step_name, suite, model, value, error, rows, *beside)


def _with_error(metrics: Mapping[str, float], name: str) -> tuple[float, float] | None:
    """A metric and its standard error, if there are both."""
    return (metrics[name], metrics[f"{name}.stderr"]) if f"{name}.stderr" in metrics else None


def _number(value: tuple[float, float] | None, sign: str = "") -> str:
    return "" if value is None else f"{value[0]:{sign}.3f} ±{value[1]:.3f}"


def _last_done(record: Mapping[str, Any]) -> str:
    names: list[str] = [name for name, step in record["steps"].items() if step["state"] != "skipped"]
    return names[-1]


def _summary(step: Mapping[str, Any]) -> str:
    if step["error"]:
        return str(step["error"])
    if step["stage"] in ("evaluate", "gate"):  # which have tables of their own
        return ""
    names = _MAIN.get(step["stage"], step["metrics"])
    return "  ".join(f"{name} {step['metrics'][name]:.4g}" for name in names if name in step["metrics"])
