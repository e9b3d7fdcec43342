"""Waiting for what another process is making, so that two never make the same."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

_WAIT_SECONDS = 0.5


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock file against other processes of this machine; one whose holder died is free.

    Args:
        path: The lock file.
        on_wait: Called at once, and then every half second, for as long as another process holds it; it ends the wait
            by raising.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    while True:
        with suppress(Timeout):
            lock.acquire(timeout=0)
            break
        on_wait()
        with suppress(Timeout):
            lock.acquire(timeout=_WAIT_SECONDS)
            break
    try:
        yield
    finally:
        lock.release()
