"""Whether a run is alive: its process holds a lock, which the kernel takes back when it dies, however it dies.

A process id cannot tell: it may have been given to another process since, or belong to another host.
"""

import fcntl
import os
from pathlib import Path

_NAME = "alive.lock"


def hold(folder: Path) -> int:
    """Be alive, until the returned file descriptor (and what child processes have of it) is closed."""
    descriptor = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # at most, somebody is just looking
    return descriptor


def is_alive(folder: Path) -> bool:
    """Whether a process holds the lock of this folder."""
    try:
        descriptor = os.open(folder / _NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who look do not see each other
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
