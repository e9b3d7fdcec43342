"""What Prefect's server is told of a run, and what happens when it is not there to hear it.

A run needs the server to begin; after that `pipeline.json` is the truth, and the server's view of the run follows it:
at the end of the run, or when the next one starts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import FlowRun, State
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Completed, Failed

from conf.errors import UserError
from flows.execute import PipelineRun
from flows.record import Record
from flows.references import pipeline_records

Flow = Callable[[dict[str, Any], Sequence[str], Callable[[PipelineRun], None]], dict[str, Any]]

_COMPLETED = ("completed", "stopped")
_ENDED = (*_COMPLETED, "failed", "interrupted")
_STEP_STATES = {"completed": "Completed", "cached": "Cached"}


def check_server() -> None:
    """Ask the server for a sign of life; without `PREFECT_API_URL` Prefect starts one of its own, for the run.

    Raises:
        UserError: Nobody answers there.
    """
    url = PREFECT_API_URL.value()
    if url is None:
        return
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
        client = get_client(sync_client=True, httpx_settings={"timeout": 10})
        with client:
            error = client.api_healthcheck()
    if error is not None:
        raise _unreachable(error)


def run_flow(flow: Flow, config: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Call the flow; what came of the run counts, even when the server could not be told.

    Returns:
        The run's record.

    Raises:
        UserError: The server went away before the run began, or whatever else the run raises as such.
        Exception: Whatever the run raises.
    """
    opened: list[PipelineRun] = []
    try:
        with _patient_for_seconds():
            flow(config, overrides, opened.append)
    except BaseException as error:
        run = opened[0] if opened else None
        if run is None and isinstance(error, httpx.TransportError):
            raise _unreachable(error) from error
        if run is None or run.record.values["state"] not in _ENDED:
            raise
        told = run.error is error
        if not told:
            run.console.say(f"{_what_failed(error)}; the next run tells it how this one ended")
        run.record.update(prefect_told=told)
        if run.error is not None:
            raise run.error from None
    else:
        opened[0].record.update(prefect_told=True)
    return opened[0].record.values


def catch_up(runs_dir: Path) -> None:
    """Tell the server how runs ended that it knows nothing better of than that they were running."""
    url = PREFECT_API_URL.value()
    untold = [
        values
        for values in pipeline_records(runs_dir)
        if values["state"] in _ENDED and not values.get("prefect_told", True) and values["prefect_url"] == url
    ]
    if not untold:
        return
    try:
        with get_client(sync_client=True) as client:
            for values in untold:
                _tell(client, values)
                Record.existing(runs_dir, values).update(prefect_told=True)
    except (httpx.HTTPError, PrefectException):  # the next start asks again
        return


def _tell(client: SyncPrefectClient, record: Mapping[str, Any]) -> None:
    try:
        flow_run: FlowRun = client.read_flow_run(record["prefect_run"])
    except ObjectNotFound:  # a server that has lost its database has nothing to be corrected
        return
    for task_run in client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.id]))):
        step = record["steps"].get(task_run.name)
        if step and not (task_run.state and task_run.state.is_final()):
            state = _state(_STEP_STATES.get(step["state"]), step["error"] or step["state"], record["ended"])
            client.set_task_run_state(task_run.id, state, force=True)
    if not (flow_run.state and flow_run.state.is_final()):
        name = "Completed" if record["state"] in _COMPLETED else None
        client.set_flow_run_state(flow_run.id, _state(name, record["state"], record["ended"]), force=True)


def _state(completed: str | None, message: str, ended: str) -> "State[Any]":
    when = datetime.fromisoformat(ended)
    return Completed(name=completed, timestamp=when) if completed else Failed(message=message, timestamp=when)


@contextmanager
def _patient_for_seconds() -> Iterator[None]:
    """A server of the user's may be gone: by itself Prefect waits for it for minutes, per request and per event."""
    url = PREFECT_API_URL.value()
    if url is None:
        yield
        return
    EventsWorker.set_client_override(PrefectEventsClient, api_url=url, reconnection_attempts=1)
    try:
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 3}):
            yield
    finally:
        EventsWorker.set_client_override(None)


def _what_failed(error: BaseException) -> str:
    return f"Prefect's server at {PREFECT_API_URL.value()} does not answer ({error or type(error).__name__})"


def _unreachable(error: Exception) -> UserError:
    return UserError(
        f"PREFECT_API_URL: {_what_failed(error)}; start it, or unset PREFECT_API_URL: a run then brings one of its own"
    )
