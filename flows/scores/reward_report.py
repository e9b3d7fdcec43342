"""What `ratchet score` shows a person: how the values of every reward are spread, and the rows at both ends."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from stages.table import table

_BARS = "▁▂▃▄▅▆▇█"
_BINS = 10
_TOTAL = "total"
_WIDTH = 60


def report(scored: Sequence[Mapping[str, Any]], n_rows: int = 3) -> str:
    """Scored rows as text: one line per reward, then the best, the worst and the failed rows.

    Args:
        scored: What `rewards.scoring.score_file` yields.
        n_rows: How many rows to show of each kind.
    """
    ranked = sorted((row for row in scored if row["total"] is not None), key=lambda row: -row["total"])
    n_best, n_worst = min(n_rows, (len(ranked) + 1) // 2), min(n_rows, len(ranked) // 2)
    shown = {
        "best": ranked[:n_best],
        "worst": ranked[len(ranked) - n_worst :][::-1],
        "failed": [row for row in scored if row["errors"]][:n_rows],
    }
    examples = [_example(kind, row) for kind, rows in shown.items() for row in rows]
    return "\n\n".join([table(_spread(scored)), table(examples)])


def _spread(scored: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    names = dict.fromkeys(name for row in scored for name in (*row["rewards"], *row["errors"]))
    values = {name: [row["rewards"][name] for row in scored if name in row["rewards"]] for name in names}
    values[_TOTAL] = [row["total"] for row in scored if row["total"] is not None]
    failed = {name: sum(name in row["errors"] for row in scored) for name in names}
    failed[_TOTAL] = len(scored) - len(values[_TOTAL])
    return [
        {"reward": name, "rows": str(len(numbers)), "errors": str(failed[name]), **_numbers(numbers)}
        for name, numbers in values.items()
    ]


def _numbers(values: Sequence[float]) -> dict[str, str]:
    if not values:
        return {"mean": "", "min": "", "max": "", "from min to max": ""}
    return {
        "mean": f"{statistics.fmean(values):.3f}",
        "min": f"{min(values):.3g}",
        "max": f"{max(values):.3g}",
        "from min to max": histogram(values),
    }


def histogram(values: Sequence[float]) -> str:
    """Ten bars between the smallest and the largest value; a bin without any value is a dot."""
    low, high = min(values), max(values)
    width = (high - low) / _BINS or 1.0
    counts = [0] * _BINS
    for value in values:
        counts[min(int((value - low) / width), _BINS - 1)] += 1
    scale = len(_BARS) / max(counts)
    return "".join(_BARS[math.ceil(count * scale) - 1] if count else "·" for count in counts)


def _example(kind: str, row: Mapping[str, Any]) -> dict[str, str]:
    values = "  ".join(f"{name} {value:.3g}{_because(row, name)}" for name, value in row["rewards"].items())
    errors = "  ".join(f"{name}: {message}" for name, message in row["errors"].items())
    completion = " ".join(row["completion"].split())
    return {
        "": kind,
        "row": str(row["row"]),
        "total": "" if row["total"] is None else f"{row['total']:.3g}",
        "completion": _cut(completion),
        "why": errors or values,
    }


def _because(row: Mapping[str, Any], name: str) -> str:
    explanation = _cut(" ".join(row["explanations"].get(name, "").split()))
    return f" ({explanation})" if explanation else ""


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…"
