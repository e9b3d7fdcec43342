"""`ratchet deploy --serve`: the schedule is kept, and its runs are started, by this process, for as long as it lives.

For one person with one machine: no worker, and no server either where the user has none. Prefect's Runner does it.
"""

import asyncio
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

from prefect.runner import Runner

from flows.schedules.deployments import Request
from flows.schedules.scheduled import scheduled


def serve(request: Request) -> None:
    """Serve a deployment until Ctrl-C or SIGTERM, which end a run under way as they end any run: it goes on next time.

    Raises:
        UserError: The request cannot be deployed.
    """
    settings = request.settings()
    runner = Runner(name=request.name, limit=None)
    deployment_id = runner.add_flow(scheduled, **settings)
    assert isinstance(deployment_id, UUID)  # and not a coroutine: nothing is asynchronous yet
    request.remember(deployment_id)
    with suppress(asyncio.CancelledError):
        asyncio.run(_until_asked(runner))


async def _until_asked(runner: Runner) -> None:
    """Run the runner; a signal ends its runs, and then itself, which pauses the schedule."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def stop(*_: Any) -> None:
        for process in multiprocessing.active_children():
            process.terminate()
        loop.call_soon_threadsafe(task.cancel)

    runner.handle_sigterm = stop  # type: ignore[method-assign]  # its own would cancel the runs for good
    with _handling(stop):
        await runner.start()


@contextmanager
def _handling(handler: Callable[..., None]) -> Iterator[None]:
    """Have Ctrl-C handled; the runner sees to SIGTERM itself, and never gives it back."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
