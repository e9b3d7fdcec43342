"""What orchestration costs: `python benchmarks/orchestration.py [RUN]`.

Without a run: a pipeline of which everything is cached, against an empty Prefect flow; one fresh process after another
(flow, pipeline, flow, ...), each with a temporary server of its own. With a run (`latest`, say, after
`ratchet run experiment=demo`, of which nothing was cached): what the flow added to its steps, and what every training
step took beyond its training loop to load, prove, fold and answer, both as a share of the whole.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

EMPTY_FLOW = [sys.executable, "-c", "from prefect import flow\n@flow\ndef empty(): pass\nempty()"]
PIPELINE = [sys.executable, "-m", "flows", "run", "experiment=smoke"]


def cached(rounds: int) -> None:
    """Print seconds of an empty flow and of a cached pipeline, and their ratio."""
    with tempfile.TemporaryDirectory() as runs:
        environment = {**os.environ, "RATCHET_RUNS_DIR": runs, "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
        seconds(PIPELINE, environment)
        times: dict[str, list[float]] = {"empty flow": [], "cached pipeline": []}
        for _ in range(rounds):
            times["empty flow"].append(seconds(EMPTY_FLOW, environment))
            times["cached pipeline"].append(seconds(PIPELINE, environment))
    flow, pipeline = (statistics.median(each) for each in times.values())
    print(f"empty flow {flow:.1f} s, cached pipeline {pipeline:.1f} s: {pipeline / flow:.2f}x")


def seconds(command: Sequence[str], environment: dict[str, str]) -> float:
    """How long a command takes that must succeed."""
    began = time.perf_counter()
    subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - began


def overhead(run: str, runs_dir: Path) -> None:
    """Print a run's seconds and those of its steps; and of every training step that it made, those of its loop."""
    from flows.references import find_run

    record = find_run(runs_dir, run).record or {}
    steps = record.get("steps", {})
    began, ended = (datetime.fromisoformat(record[key]) for key in ("started", "ended"))
    whole, inside = (ended - began).total_seconds(), sum(step["seconds"] or 0 for step in steps.values())
    print(f"{'pipeline':12} {whole:6.1f} s, its steps {inside:6.1f} s: {(whole - inside) / whole:.1%} the flow's own")
    for name, step in steps.items():
        rows = find_run(runs_dir, f"{run}/{name}").entry.progress() if step["state"] == "completed" else []
        if rows:
            whole, loop = step["seconds"], rows[-1]["time"]
            print(f"{name:12} {whole:6.1f} s, training {loop:6.1f} s: {(whole - loop) / whole:4.0%} beyond the loop")


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", metavar="RUN", help="a pipeline run; without one, start-up is measured")
    parser.add_argument("--runs-dir", default=os.environ.get("RATCHET_RUNS_DIR", "runs"), type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="processes of either kind (5)")
    arguments = parser.parse_args()
    if arguments.run:
        overhead(arguments.run, arguments.runs_dir)
    else:
        cached(arguments.rounds)


if __name__ == "__main__":
    main()
