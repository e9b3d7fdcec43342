"""What Prefect's server is told of a run, and what happens when it is not there to hear it.

A run needs the server to begin; after that `pipeline.json` is the truth, and the server's view of the run follows it:
at the end of the run, or when the next one starts.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import FlowRun, State, TaskRun
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    temporary_settings,
)
from prefect.states import Cancelled, Completed, Crashed, Failed

from flows.execute import PipelineRun
from flows.liveness import is_alive
from flows.outcome import VERDICTS
from flows.prefect_server import server_name, unreachable, users_server
from flows.references import pipeline_records
from flows.store import write_json
from flows.sweeps.record import FOLDER, sweep_records

_STATES: dict[str, Callable[..., State[Any]]] = {
    "completed": Completed,
    "cached": partial(Completed, name="Cached"),
    "stopped": Completed,
    "failed": Failed,
    "interrupted": Crashed,
    "cancelled": Cancelled,
}
"""Prefect's state of a run or a step that has ended, by the record's."""

_LIMITS: dict[Any, Any] = {PREFECT_CLIENT_MAX_RETRIES: 3, PREFECT_API_REQUEST_TIMEOUT: 20.0}
"""How long a request may take, where the user has set nothing else."""


def run_flow(flow: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
    """Call the flow; what came of the run counts, even when the server could not be told.

    Args:
        flow: `flows.posttrain.posttrain`.
        arguments: Its arguments, all but `on_open`.
        options: Those by name.

    Returns:
        The run's record.

    Raises:
        UserError: The server went away before the run began.
        Exception: Whatever ended the run early.
    """
    opened: list[PipelineRun] = []
    try:
        with _patient_for_seconds():
            state: State[Any] = flow(*arguments, on_open=opened.append, return_state=True, **options)
        if not opened:
            state.result()  # raises what the run failed of before it began
        told = True
    except BaseException as error:
        if not opened and isinstance(error, httpx.TransportError):
            raise unreachable(error) from error
        if not opened or opened[0].record.values["state"] not in _STATES:
            raise
        told = opened[0].error is error
        if not told:
            reason = str(error) or type(error).__name__
            opened[0].console.say(f"{server_name()} could not be told how the run ended ({reason}); the next run does")
    run = opened[0]
    with contextlib.suppress(OSError):  # a disk that is full must not hide what the run failed of
        run.record.update(prefect_told=told)
    run.record.release()
    if run.error is not None:
        raise run.error
    return run.record.values


def catch_up(runs_dir: Path) -> None:
    """Tell the server how runs ended that it knows nothing better of than that they were running."""
    runs = [(runs_dir / "pipelines" / values["id"] / "pipeline.json", values) for values in pipeline_records(runs_dir)]
    runs += [(runs_dir / FOLDER / values["id"] / "sweep.json", values) for values in sweep_records(runs_dir)]
    untold = [
        (path, values)
        for path, values in runs
        if values["state"] in _STATES
        and not values.get("prefect_told", True)
        and values["prefect_run"]
        and values["prefect_url"] == users_server()
        and not is_alive(path.parent)
    ]
    if not untold:
        return
    try:
        with get_client(sync_client=True) as client:
            for path, values in untold:
                _tell(client, values)
                write_json(path, {**values, "prefect_told": True})
    except (httpx.HTTPError, PrefectException):  # the next start asks again
        return


def _tell(client: SyncPrefectClient, record: Mapping[str, Any]) -> None:
    try:
        flow_run: FlowRun = client.read_flow_run(record["prefect_run"])
    except ObjectNotFound:  # a server that has lost its database has nothing to be corrected
        return
    if not _is_about(record, flow_run):
        return
    for task_run in client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.id]))):
        step = record.get("steps", {}).get(task_run.name)
        if step and step["state"] in _STATES and not _is_final(task_run):
            client.set_task_run_state(task_run.id, _state(step["state"], record["ended"], step["error"]), force=True)
    if not _is_final(flow_run):
        state = _state(record["state"], record["ended"])
        state.name = VERDICTS.get(str(record.get("verdict")), str(state.name))
        client.set_flow_run_state(flow_run.id, state, force=True)


def _is_about(record: Mapping[str, Any], flow_run: FlowRun) -> bool:
    """Whether a record tells of what the server has as running or ended; a deployment's run may have begun again."""
    waits = flow_run.state is not None and (flow_run.state.is_scheduled() or flow_run.state.is_pending())
    return not waits and record.get("prefect_attempt") in (None, flow_run.run_count)


def _is_final(run: FlowRun | TaskRun) -> bool:
    return run.state is not None and run.state.is_final()


def _state(state: str, ended: str | None, message: str | None = None) -> State[Any]:
    when = datetime.fromisoformat(ended) if ended else datetime.now(UTC)  # it died, and could not say when
    return _STATES[state](message=message or f"pipeline.json: {state}", timestamp=when)


@contextlib.contextmanager
def _patient_for_seconds() -> Iterator[None]:
    """A server of the user's may be gone: by itself Prefect waits for it for minutes, per request and per event."""
    url = PREFECT_API_URL.value()
    if url is None:
        yield
        return
    EventsWorker.set_client_override(PrefectEventsClient, api_url=url, reconnection_attempts=1)
    try:
        with temporary_settings({name: value for name, value in _LIMITS.items() if name.value() == name.default()}):
            yield
    finally:
        EventsWorker.set_client_override(None)
