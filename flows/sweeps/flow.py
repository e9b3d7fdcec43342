"""The flow of a sweep: its cells as tasks, each of which runs the flow `posttrain` in a worker process.

One flow wraps all launches of a sweeper.
"""

from contextvars import ContextVar
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State
from prefect.runtime import flow_run
from prefect.states import Cancelled

from flows.flow_report import catch_up
from flows.prefect_server import server_name, shared_server, start_server, users_server
from flows.stop import CANCEL, Stopped
from flows.sweeps.cell_process import do_cell
from flows.sweeps.leaderboard_files import leaderboard_values
from flows.sweeps.run import SweepRun
from flows.workers.dispatch import Dispatch


@task(name="cell", cache_policy=NO_CACHE, persist_result=False)
def run_cell(cell: dict[str, Any]) -> dict[str, Any]:
    """Run one cell (see `flows.sweeps.cell_process.do_cell`); the flow below it says how it ended."""
    return do_cell(cell)


@flow(name="sweep", validate_parameters=False, persist_result=False)
def sweep_flow(sweep: str) -> "State[Any] | None":
    """Run the cells of the sweep with this id; Cancelled where it was."""
    return _run_cells()  # this function travels to the cells with all that it names, so it names little


def _run_cells() -> "State[Any] | None":
    run = _current.get()
    run.record.update(prefect_run=flow_run.get_id(), prefect_url=users_server())
    try:
        with Dispatch(run.workers.make_runner, run_cell, run.workers.count, run.stop) as dispatch:
            run.run(dispatch)
    except Stopped as stopped:
        if stopped.reason == CANCEL:
            return Cancelled(message=str(stopped))
        raise
    return None


_current: ContextVar[SweepRun] = ContextVar("sweep")
"""The sweep under way in this process; the flow's parameters travel to the cells, and it cannot."""


def run_sweep(run: SweepRun) -> dict[str, Any]:
    """Run a sweep as a Prefect flow; returns its leaderboard as plain JSON.

    Raises:
        Stopped: It was asked to end.
    """
    start_server()
    catch_up(run.runs_dir)
    token = _current.set(run)
    try:
        with shared_server():
            sweep_flow(run.record.id, return_state=True)
        run.record.update(prefect_told=True)
    except Exception as error:  # the server's, which went away: what came of the sweep counts
        if run.found is None and run.error is None:
            raise
        run.console.say(f"{server_name()} could not be told how the sweep ended ({error or type(error).__name__})")
    finally:
        _current.reset(token)
    if run.error is not None:
        raise run.error
    assert run.found is not None
    about = {"sweep": run.record.id, "folder": str(run.record.folder), "shipped": run.shipped}
    return {**about, **leaderboard_values(run.found)}
