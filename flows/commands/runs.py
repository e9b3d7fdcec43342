"""`ratchet runs`: the runs of pipelines, oldest first."""

import argparse
import json
from pathlib import Path
from typing import Any

from flows.references import pipeline_records
from stages.table import table


def main(arguments: argparse.Namespace) -> int:
    """Print the list; returns the exit code."""
    records = pipeline_records(Path(arguments.runs_dir))
    if arguments.json:
        print(json.dumps(records))
    elif not records:
        print(f"no runs in {arguments.runs_dir} yet; `ratchet run experiment=smoke` makes one")
    else:
        print(table([_row(record) for record in records]))
    return 0


def _row(record: dict[str, Any]) -> dict[str, str]:
    return {
        "run": str(record["id"]),
        "state": str(record["state"]) + _origin(record),
        "verdict": str(record["verdict"] or ""),
        "started": str(record["started"])[:19].replace("T", " "),
        "steps": " ".join(f"{name}:{step['state']}" for name, step in record["steps"].items()),
    }


def _origin(record: dict[str, Any]) -> str:
    """Where a run was made, when not here."""
    imported = record.get("imported")
    return f", imported from {imported['host']}" if imported else ""
