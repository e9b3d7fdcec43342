"""The flow that a deployment runs: the configuration is composed anew, on the night itself, and then it is `posttrain`.

So `champion`, and what files hold, are those of that night. How a run ends decides what comes of it: what has a verdict
is completed, and bad input is failed, neither of which is ever tried again; what was interrupted (the worker was
stopped, the machine shut down) is scheduled again at once, and what met with an outage after a while; what crashed is
up to `flows.schedules.recovery`.
"""

import os
import signal
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas import State
from prefect.exceptions import Pause, TerminationSignal
from prefect.runtime import deployment, flow_run
from prefect.states import AwaitingRetry, Cancelled, Failed, Scheduled

from conf.errors import OutageError, UserError
from conf.loader import dump
from conf.run import RunConfig
from flows.commands.run import checked, command_line
from flows.compose import compose_run
from flows.flow_report import catch_up
from flows.posttrain import carry_out, open_run
from flows.schedules.alive import signs_of_life
from flows.schedules.deployed import Deployed
from flows.stop import Stopped

OUTAGE = "Outage"
"""Name of the state of a run that waits for a service, e.g. MLflow, to come back."""

_PAUSES = [timedelta(minutes=minutes) for minutes in (1, 2, 4, 8, *[15] * 23)]
"""From one attempt to the next during an outage."""
_PATIENCE = f"{sum(_PAUSES, timedelta()) / timedelta(hours=1):.0f} hours"


def run_name() -> str:
    """`<deployment>-<date>`: of the day, in the schedule's time zone, on which the run was to begin."""
    deployed = Deployed.find(str(deployment.get_id()))
    if deployed is None:
        return str(flow_run.get_name())
    return f"{deployed.name}-{flow_run.get_scheduled_start_time().astimezone(ZoneInfo(deployed.timezone)):%Y-%m-%d}"


@flow(name="posttrain", flow_run_name=run_name, persist_result=False)
def scheduled(overrides: Sequence[str] = ()) -> "dict[str, Any] | State[Any]":
    """Post-train as deployed.

    Args:
        overrides: KEY=VALUE, as for `ratchet run`. May differ from what was deployed only in the seed, the name, the
            experiment, and numbers, switches and named choices of sft, pairs, preference and reinforce
            (nothing of reinforce.vllm).

    Returns:
        What `posttrain` returns, or the state Failed that says what is wrong with the input, or which service was away
        for too long.
    """
    _leave_terminal()
    with signs_of_life():
        try:
            return _post_train(overrides)
        except Stopped as stopped:
            return _interrupted(stopped.reason)
        except TerminationSignal:  # before there was anything to keep
            return _interrupted(signal.SIGTERM.name)
        except OutageError as outage:
            return _put_off(outage)


def _post_train(overrides: Sequence[str]) -> "dict[str, Any] | State[Any]":
    try:
        deployed = Deployed.read(str(deployment.get_id()))
        asked = deployed.asked(overrides)
        config = _compose(deployed, asked)
        catch_up(checked(config).runs_dir)
        run = open_run(dump(config.sections), asked, command_line("run", asked, deployed.config_dir), checked=True)
    except OutageError:
        raise
    except UserError as error:
        return Failed(message=f"Not tried again: {error}")
    try:
        return carry_out(run)
    finally:
        run.record.release()


def _leave_terminal() -> None:
    """Have a process group of our own: Ctrl-C is for whoever started us, and he asks us to end."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)


def _compose(deployed: Deployed, overrides: Sequence[str]) -> RunConfig:
    try:
        os.chdir(deployed.directory)
    except OSError as error:
        raise UserError(f"{deployed.directory}: the project cannot be entered ({error.strerror})") from error
    return compose_run(overrides, deployed.config_dir)


def _interrupted(reason: str | None) -> State[Any]:
    """What becomes of a run that a signal has ended: it goes on as soon as it can."""
    return _put_back(AwaitingRetry(message=f"Interrupted by {reason}; goes on from what is in the store."))


def _put_off(outage: OutageError) -> State[Any]:
    """What becomes of a run that met with an outage: it goes on after a while, if that did not happen too often."""
    with get_client(sync_client=True) as client:
        states = client.read_flow_run_states(UUID(flow_run.get_id()))
    earlier = 0
    for state in sorted(states, key=lambda state: state.timestamp):
        earlier = 0 if state.is_failed() else earlier + (state.name == OUTAGE)  # a person may try again what failed
    if earlier >= len(_PAUSES):
        return Failed(message=f"Not tried again, after {_PATIENCE}: {outage}")
    when = datetime.now(UTC) + _PAUSES[earlier]
    message = f"Tried again at {when:%H:%M} UTC, for {_PATIENCE} in all: {outage}"
    return _put_back(Scheduled(scheduled_time=when, name=OUTAGE, message=message))


def _put_back(state: State[Any]) -> State[Any]:
    """End this attempt, and leave the run in a state from which it goes on; cancelled where Prefect wants it so.

    Raises:
        Pause: Prefect's signal to leave the run in the state that the server has.
    """
    run_id = UUID(flow_run.get_id())
    with get_client(sync_client=True) as client:
        found = client.read_flow_run(run_id).state
        if found is not None and found.is_cancelling():
            return Cancelled(message="Cancelled; what is done is kept in the store.")
        if found is not None and found.is_running():
            client.set_flow_run_state(run_id, state)
            found = client.read_flow_run(run_id).state
    raise Pause(state=found)
