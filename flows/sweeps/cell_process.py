"""What the process of a cell does: it runs the pipeline as any run, and scores the model it leaves.

What a run would write to the terminal goes to a file of the cell. A cell does not raise: its outcome says what went
wrong.
"""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.errors import DiskError, OutageError, UserError
from conf.run import RunConfig, load_run
from flows.commands.run import run_pipeline
from flows.console import Console
from flows.outcome import EXIT_CODES
from flows.references import pipeline_records
from flows.stop import CANCEL, Stopped, StopRequest
from flows.sweeps.select_scores import model_of, score_cell
from flows.tracking import Tracker
from flows.workers.ray_worker import settle
from flows.workspace import Workspace
from stages.contract import Interrupted


def prepare_worker() -> None:
    """Make this process one that runs cells: it ends with the sweep, and Ctrl-C is the sweep's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)  # a cell keeps first what it has done


def do_cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Run one cell.

    Args:
        cell: As plain values: `config`, `overrides`, `command`, `sweep` (see `flows.live_record.Parent`),
            `varied`, `candidate` (the step whose model is scored), `output`, and for another machine `place` (see
            `flows.workers.ray_worker`).

    Returns:
        `state` (as of a run's record), `code` (as the exit code of a run), `run`, `error`, `scores` (see
        `flows.sweeps.select_scores.score_cell`).
    """
    outcome = {"state": "failed", "code": 1, "run": None, "error": "", "scores": {}}
    if problem := "place" in cell and settle(cell["place"]):
        return outcome | {"code": 2, "error": problem}
    with _output_to(Path(cell["output"])):
        config = load_run(cell["config"])
        try:
            if (Path(cell["sweep"]["folder"]) / CANCEL).exists():
                raise Interrupted("not begun")
            outcome |= _run(config, cell)
        except Interrupted as error:
            stopped = error if isinstance(error, Stopped) else Stopped(CANCEL)
            state = "cancelled" if stopped.reason == CANCEL else "interrupted"
            outcome |= {"state": state, "code": stopped.exit_code}
        except (UserError, DiskError, OutageError) as error:
            outcome |= {"code": 2 if isinstance(error, UserError) else 1, "error": str(error)}
        except Exception as error:
            traceback.print_exception(error)
            outcome |= {"error": f"{type(error).__name__}: {error}"}
        outcome["run"] = outcome["run"] or _run_of(config, cell["sweep"])
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os._exit(1)
    return outcome


def _run(config: RunConfig, cell: Mapping[str, Any]) -> dict[str, Any]:
    """Run the pipeline and score its model."""
    record = run_pipeline(config, cell["overrides"], cell["command"], sweep=cell["sweep"])
    outcome = {"state": record["state"], "code": EXIT_CODES[record["verdict"]], "run": record["id"]}
    if record["state"] == "stopped":
        done = [name for name, step in record["steps"].items() if step["state"] != "skipped"]
        return {**outcome, "error": f"stopped by {done[-1]}"}
    if cell["candidate"] is None:
        return outcome
    model = model_of(config, record, cell["candidate"])
    if model is None:
        return {**outcome, "error": record["steps"][cell["candidate"]]["error"] or "left no model"}
    console = Console()
    workspace = Workspace(config)
    stop = StopRequest(console.say, Path(cell["sweep"]["folder"]), workspace.runs_dir / "pipelines" / record["id"])
    try:
        with stop.signals():
            scores = score_cell(config, model, stop, console, f"{record['id']} (pid {os.getpid()})")
    except Interrupted as error:
        raise Stopped(stop.reason) from error
    _track(config, workspace.runs_dir, record, cell["varied"], scores)
    return {**outcome, "scores": scores}


def _track(
    config: RunConfig, runs_dir: Path, record: Mapping[str, Any], varied: Mapping[str, str], scores: Mapping[str, Any]
) -> None:
    """Tell MLflow's run of the cell what it varies and how it scored, if MLflow can be reached."""
    run = record["mlflow_run"]
    if run:
        tracker = Tracker(replace(config.sections.tracking, required=False), runs_dir)
        row = {f"select.{suite}": score["mean"] for suite, score in scores.items()}

        def send() -> None:
            tracker.params(run, varied)
            tracker.rows(run, [{**row, "step": 0}])

        tracker.attempt(send)


def _run_of(config: RunConfig, sweep: Mapping[str, Any]) -> str | None:
    """The run that was begun for a cell, if one was."""
    for record in reversed(pipeline_records(Workspace(config).runs_dir)):
        own = record.get("sweep") or {}
        if (own.get("id"), own.get("number")) == (sweep["id"], sweep["number"]):
            return str(record["id"])
    return None


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """While it lasts, standard output and error of this process go to the end of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in zip((1, 2), before, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
