"""Signs of life: what the process of a run tells Prefect's server, so that its silence means that it is gone.

Prefect sends them itself where the environment of the process says so, but not every work pool passes one on.
"""

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prefect.events import emit_event
from prefect.runtime import deployment, flow_run

from flows.schedules.recovery import HEARTBEAT, HEARTBEAT_SECONDS


@contextmanager
def signs_of_life() -> Iterator[None]:
    """While it lasts, the run of a deployment that this process is sends one every half minute, the first at once."""
    over = threading.Event()
    resource = {"prefect.resource.id": f"prefect.flow-run.{flow_run.get_id()}"}
    owner = {"prefect.resource.id": f"prefect.deployment.{deployment.get_id()}", "prefect.resource.role": "deployment"}

    def send() -> None:
        while True:
            with suppress(Exception):  # a server that is away hears the next one
                emit_event(HEARTBEAT, resource, related=[owner])
            if over.wait(HEARTBEAT_SECONDS):
                return

    # In a copy of the context, which has the server's address.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(send,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=2)
