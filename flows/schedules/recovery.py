"""A run of a deployment that dies: how Prefect's server comes to know, and how the run goes on.

A flow whose process dies is marked Crashed by the worker that started it. When the worker dies as well, or the whole
machine, nobody is left to say so: Prefect then shows the run as Running for ever, and with one run at a time the
schedule stands still. So a deployment brings automations, which the server itself carries out:

- a run that gives no sign of life for a minute and a half (its process sends one every half minute) has crashed;
- a run that crashed in one of its first attempts is scheduled again, and goes on from the store like any other;
- a run that a worker took and did not begin within ten minutes is scheduled again.

A run that ends by itself (shipped, held, inconclusive, stopped, failed, cancelled) is not Crashed, and stays as it is.
One that crashes before it begins stays as it is, too: what a worker cannot even start, it cannot start again either.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from uuid import UUID

from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

RESUMING = "Resuming"
"""Name of the state of a run that is to go on after a crash."""

HEARTBEAT_SECONDS = 30
"""From one sign of life to the next; the shortest that Prefect takes."""

_SILENT = timedelta(seconds=3 * HEARTBEAT_SECONDS)
_SETTLED = timedelta(seconds=30)  # a worker says twice that a run has crashed, and must not say it of the next attempt
_NOT_BEGUN = timedelta(minutes=10)
_BEGUN = "prefect.run-count"  # how often the run has begun: a label of the events that tell of its states

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
        retries: A run that crashes in one of so many first attempts goes on. Prefect counts all attempts, also
            those that ended because somebody stopped the worker.
    """
    begun = ("Running", "Crashed", "Failed", "Cancelled", "Cancelling")
    times = [str(count) for count in range(1, retries + 1)]
    rules = {
        "silent": (_trigger(deployment_id, "heartbeat", ("*",), _SILENT), _CRASHED),
        "not begun": (_trigger(deployment_id, "Pending", begun, _NOT_BEGUN), _RESUME),
    }
    if times:
        rules["crashed"] = (_trigger(deployment_id, "Crashed", ("*",), _SETTLED, {_BEGUN: times}), _RESUME)
    return [
        AutomationCore(
            name=f"ratchet {name}: {what}",
            trigger=trigger,
            actions=[action],
            owner_resource=f"prefect.deployment.{deployment_id}",
        )
        for what, (trigger, action) in rules.items()
    ]


def _trigger(
    deployment_id: UUID,
    after: str,
    expect: Iterable[str],
    within: timedelta,
    labels: Mapping[str, list[str]] = MappingProxyType({}),
) -> EventTrigger:
    """None of some events is seen within some time after another one, run by run."""
    return EventTrigger(
        match={"prefect.resource.id": "prefect.flow-run.*", **labels},
        match_related={"prefect.resource.id": f"prefect.deployment.{deployment_id}"},
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        after={f"prefect.flow-run.{after}"},
        expect={f"prefect.flow-run.{event}" for event in expect},
        within=within,
    )
