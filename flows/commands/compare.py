"""`ratchet compare RUN RUN...`: runs as rows; for each what it started from, its last numbers, and its known scores.

Only scores that an evaluate step of the same pipeline run has computed are shown: nothing is evaluated here.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from flows.outcome import scores
from flows.references import FoundRun, find_pipeline, find_run
from stages.table import table


def main(arguments: argparse.Namespace) -> int:
    """Print the comparison; returns the exit code."""
    runs_dir = Path(arguments.runs_dir)
    rows = [row for text in arguments.run for row in _rows(runs_dir, text)]
    if arguments.json:
        print(json.dumps(rows))
    else:
        columns = list(dict.fromkeys(name for row in rows for name in row))
        print(table([{name: _cell(row.get(name)) for name in columns} for row in rows]))
    return 0


def _rows(runs_dir: Path, text: str) -> list[dict[str, Any]]:
    """One row for a step; for a whole pipeline run one row for every step that trained or was evaluated."""
    record = find_pipeline(runs_dir, text)
    if record is None:
        return [_row(find_run(runs_dir, text))]
    names = [name for name, step in record["steps"].items() if step["store"] and step["stage"] != "evaluate"]
    return [_row(find_run(runs_dir, f"{record['id']}/{name}")) for name in names]


def _row(found: FoundRun) -> dict[str, Any]:
    saved = found.entry.saved("result.json") or {}
    row: dict[str, Any] = {"run": found.name, "stage": found.entry.id.rsplit("-", 1)[0], "start": ""}
    if found.record and found.step:
        row["start"] = found.record["steps"][found.step]["start"]
    row["adapters"] = len(saved.get("model", {}).get("adapters", []))
    for logged in found.entry.progress()[-1:]:
        row.update({name: value for name, value in logged.items() if name in _SHOWN})
    row.update(_known_scores(found))
    return row


_SHOWN = ("step", "loss", "reward", "kl", "margin")


def _known_scores(found: FoundRun) -> dict[str, float]:
    """What the evaluate steps of the run's own pipeline found for this step's model."""
    found_scores = scores(found.record) if found.record else ()
    return {score.suite: score.mean for score in found_scores if score.model == found.step}


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
