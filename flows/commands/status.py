"""`ratchet status`: what runs now, how far it is, and what was interrupted and waits to be continued."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.orphans import interrupted, resume_command
from flows.record import PROGRESS
from flows.references import pipeline_records
from flows.sweeps.record import sweep_records
from stages.table import table


def main(arguments: argparse.Namespace) -> int:
    """Print the runs that are alive, and those that are interrupted; returns the exit code."""
    runs_dir = Path(arguments.runs_dir)
    records, sweeps = pipeline_records(runs_dir), sweep_records(runs_dir)
    alive = [_sweep(record) for record in sweeps if record["state"] == "running"]
    alive += [_now(runs_dir, record) for record in records if record["state"] == "running"]
    broken = [_sweep(record) for record in interrupted(sweeps, "command")]
    broken += [_now(runs_dir, record) for record in interrupted(records) if not record.get("sweep")]
    if arguments.json:
        print(json.dumps(alive + broken))
        return 0
    print(table([_row(run) for run in alive]) if alive else f"nothing runs in {runs_dir}")
    for run in broken:
        print(f"\n{run['run']}: interrupted in {run['step'] or _place(run)}; this continues it:\n  {run['resume']}")
    return 0


def _now(runs_dir: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Where a run stands."""
    begun = [name for name, step in record["steps"].items() if step["state"] in ("running", "waiting", "interrupted")]
    step = begun[-1] if begun else None
    progress = _progress(runs_dir / "pipelines" / record["id"] / PROGRESS)
    return {
        "run": record["id"],
        "state": record["state"],
        "step": step,
        "step_state": record["steps"][step]["state"] if step else None,
        "progress": progress if progress.get("step") == step else {},
        "since": record["started"],
        "pid": record.get("pid"),
        "host": record.get("host"),
        "resume": resume_command(record) if record["state"] == "interrupted" else None,
    }


def _sweep(record: Mapping[str, Any]) -> dict[str, Any]:
    """Where a sweep stands; its cells, where they run, are runs of their own."""
    over = sum(cell["state"] != "running" for cell in record["cells"].values())
    return {
        "run": record["id"],
        "state": record["state"],
        "step": None,
        "step_state": None,
        "progress": {"what": "cells", "done": over, "total": record["total"]},
        "since": record["started"],
        "pid": record["pid"],
        "host": record["host"],
        "resume": resume_command(record) if record["state"] == "interrupted" else None,
    }


def _progress(path: Path) -> dict[str, Any]:
    """What the run wrote last; only for people to read, and often not there."""
    try:
        progress = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return progress if isinstance(progress, dict) else {}


def _place(run: Mapping[str, Any]) -> str:
    """Where a run without a step was interrupted."""
    progress = run["progress"]
    return f"the middle, {progress['done']} of {progress['total']} cells done" if progress else "its first step"


def _row(run: Mapping[str, Any]) -> dict[str, str]:
    progress = run["progress"]
    how_far = f"{progress['what']} {progress['done']}/{progress['total']}" if progress else ""
    return {
        "run": run["run"],
        "step": run["step"] or "",
        "progress": "waits" if run["step_state"] == "waiting" else how_far,
        "since": run["since"][:19].replace("T", " "),
        "process": f"{run['pid']}@{run['host']}",
    }
