"""A run of a deployment that dies: how Prefect's server comes to know, and how the run goes on.

A flow whose process dies is marked Crashed by the worker that started it. When the worker dies as well, or the whole
machine, nobody is left to say so: Prefect then shows the run as Running for ever, and with one run at a time the
schedule stands still. So a deployment brings automations, which the server itself carries out:

- a run that gives no sign of life for a minute and a half (its process sends one every half minute) has crashed;
- a run that crashed is scheduled again, and goes on from the store like any other;
- a run that crashed once too often has failed; how often it was interrupted meanwhile does not matter;
- a run that a worker took and did not begin within ten minutes is scheduled again.

A run that ends by itself (shipped, held, inconclusive, stopped, failed, cancelled) is not Crashed, and stays as it is.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

RESUMING = "Resuming"
"""Name of the state of a run that is to go on after a crash."""

HEARTBEAT = "prefect.flow-run.heartbeat"
"""Prefect's name for a sign of life."""

HEARTBEAT_SECONDS = 30
"""From one sign of life to the next."""

_SILENT = timedelta(seconds=3 * HEARTBEAT_SECONDS)
_SETTLED = timedelta(seconds=30)  # a worker says twice that a run has crashed, and must not say it of the next attempt
_NOT_BEGUN = timedelta(minutes=10)
_REMEMBERED = timedelta(days=30)  # how long the first crash of a run counts

_CRASHED = ChangeFlowRunState(
    state=StateType.CRASHED,
    name="Crashed",
    message="No sign of life: the process, its worker or the machine is gone.",
    force=False,
)
_RESUME = ChangeFlowRunState(
    state=StateType.SCHEDULED, name=RESUMING, message="Goes on after a crash, from what is in the store.", force=False
)


def automations(deployment_id: UUID, name: str, retries: int) -> list[AutomationCore]:
    """What the server is to do when runs of a deployment die; the deployment owns it, and takes it along when it goes.

    Args:
        deployment_id: The deployment.
        name: Its name.
        retries: After how many crashes a run goes on; with the next one it has failed.
    """
    begun = ("Running", "Crashed", "Failed", "Cancelled", "Cancelling")
    rules = {
        "silent": (_absence(deployment_id, "heartbeat", ("*",), _SILENT), _CRASHED),
        "not begun": (_absence(deployment_id, "Pending", begun, _NOT_BEGUN), _RESUME),
    }
    if retries:
        rules["crashed"] = (_absence(deployment_id, "Crashed", ("*",), _SETTLED), _RESUME)
        rules["crashed too often"] = (_repetition(deployment_id, "Crashed", retries + 1), _failed(retries + 1))
    return [
        AutomationCore(
            name=f"ratchet {name}: {what}",
            trigger=trigger,
            actions=[action],
            owner_resource=f"prefect.deployment.{deployment_id}",
        )
        for what, (trigger, action) in rules.items()
    ]


def _absence(deployment_id: UUID, after: str, expect: Iterable[str], within: timedelta) -> EventTrigger:
    """None of some events is seen within some time after another one, run by run."""
    return _trigger(deployment_id, {after}, expect, within, posture=Posture.Proactive)


def _repetition(deployment_id: UUID, event: str, times: int) -> EventTrigger:
    """An event is seen so many times, run by run; then it is counted anew."""
    # The first one opens the count, and so is not in it.
    return _trigger(deployment_id, {event}, {event}, _REMEMBERED, posture=Posture.Reactive, threshold=times - 1)


def _trigger(
    deployment_id: UUID, after: Iterable[str], expect: Iterable[str], within: timedelta, **settings: Any
) -> EventTrigger:
    return EventTrigger(
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related={"prefect.resource.id": f"prefect.deployment.{deployment_id}"},
        for_each={"prefect.resource.id"},
        after={f"prefect.flow-run.{event}" for event in after},
        expect={f"prefect.flow-run.{event}" for event in expect},
        within=within,
        **settings,
    )


def _failed(crashes: int) -> ChangeFlowRunState:
    message = f"Not tried again: crashed {crashes} times (`ratchet deploy --retries` says how often a run may)."
    return ChangeFlowRunState(state=StateType.FAILED, name="Failed", message=message, force=False)
