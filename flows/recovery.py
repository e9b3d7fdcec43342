"""A run of a deployment that dies: how Prefect's server comes to know, and how the run goes on.

A flow whose process dies is marked Crashed by the worker that started it. When the worker dies as well, or the whole
machine, nobody is left to say so: Prefect then shows the run as Running for ever, and with one run at a time the
schedule stands still. So a deployment brings three automations, which the server itself carries out:

- a run that gives no sign of life for a minute and a half (its process sends one every half minute) has crashed;
- a run that crashed after it had begun is scheduled again, and goes on from the store like any interrupted run;
- a run that a worker took and did not begin within ten minutes is scheduled again.

A run that ends by itself (shipped, held, inconclusive, stopped, failed, cancelled) is not Crashed, and stays as it is.
One that crashes before it begins stays as it is, too: what the worker cannot even start, it cannot start again either.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Literal
from uuid import UUID

from prefect.client.schemas import State
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

RESUMING = "Resuming"
"""Name of the state of a run that is to go on after a crash."""

HEARTBEAT_SECONDS = 30
"""From one sign of life to the next; the shortest that Prefect takes."""

SILENT = timedelta(seconds=3 * HEARTBEAT_SECONDS)
"""After so long without a sign of life a run has crashed."""

_NOT_BEGUN = timedelta(minutes=10)
_LONGEST_RUN = timedelta(days=30)

_CRASHED = ChangeFlowRunState(
    state=StateType.CRASHED,
    name="Crashed",
    message="No sign of life: the process, its worker or the machine is gone.",
    force=False,
)
_RESUME = ChangeFlowRunState(
    state=StateType.SCHEDULED, name=RESUMING, message="Goes on after a crash, from what is in the store.", force=False
)


def automations(deployment_id: UUID, name: str) -> list[AutomationCore]:
    """What the server is to do when runs of a deployment die; it owns them, so that they go when it goes."""
    begun = ("Running", "Crashed", "Failed", "Cancelled", "Cancelling")
    silent = _trigger(deployment_id, Posture.Proactive, ("heartbeat",), ("*",), SILENT)
    # Each heartbeat says again that the run has begun: automations may be made anew while it goes on.
    crashed = _trigger(deployment_id, Posture.Reactive, ("Running", "heartbeat"), ("Crashed",), _LONGEST_RUN)
    not_begun = _trigger(deployment_id, Posture.Proactive, ("Pending",), begun, _NOT_BEGUN)
    rules = {"silent": (silent, _CRASHED), "crashed": (crashed, _RESUME), "not begun": (not_begun, _RESUME)}
    return [
        AutomationCore(
            name=f"ratchet {name}: {what}",
            trigger=trigger,
            actions=[action],
            owner_resource=f"prefect.deployment.{deployment_id}",
        )
        for what, (trigger, action) in rules.items()
    ]


def resumptions(states: Iterable[State]) -> int:
    """How often in a row a run has gone on after a crash; whatever else it came to in between begins a new row.

    Args:
        states: All states that the run was in.
    """
    count = 0
    for state in sorted(states, key=lambda state: state.timestamp):
        if state.type in (StateType.COMPLETED, StateType.FAILED, StateType.CANCELLED):
            count = 0
        elif state.name == RESUMING:
            count += 1
    return count


def _trigger(
    deployment_id: UUID,
    posture: Literal[Posture.Reactive, Posture.Proactive],
    after: Iterable[str],
    expect: Iterable[str],
    within: timedelta,
) -> EventTrigger:
    """An event that is seen (or, proactively, none that is seen) within some time after another one, run by run."""
    return EventTrigger(
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related={"prefect.resource.id": f"prefect.deployment.{deployment_id}"},
        for_each={"prefect.resource.id"},
        posture=posture,
        after={f"prefect.flow-run.{event}" for event in after},
        expect={f"prefect.flow-run.{event}" for event in expect},
        within=within,
    )
