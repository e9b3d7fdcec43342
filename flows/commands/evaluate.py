"""`ratchet evaluate RUN`: the scores of a model and of what it started from, on suites of its run or any others."""

import argparse
import json
from typing import Any

from flows.scores.model_scores import ModelScores
from stages.table import table


def main(arguments: argparse.Namespace) -> int:
    """Print the scores; returns the exit code."""
    bench = ModelScores(arguments)
    named = bench.find(arguments.run)
    start = bench.start_of(named, arguments.run)
    models = [named] if start.model.identity == named.model.identity else [start, named]
    scores = bench.score(models, start.model)
    rows = [{"suite": suite, "model": name, **vars(score)} for (suite, name), score in scores.items()]
    if arguments.json:
        print(json.dumps([{name: value for name, value in row.items() if name != "by_row"} for row in rows]))
    else:
        print(table([_cells(row) for row in rows]))
    return 0


def _cells(row: dict[str, Any]) -> dict[str, str]:
    return {
        "suite": row["suite"],
        "model": row["model"],
        "score": f"{row['mean']:.3f}",
        "95% interval": f"{row['low']:.3f} to {row['high']:.3f}",
        "rows": str(row["rows"]),
        "tokens": f"{row['tokens']:.1f}",
    }
