"""What /proc says of processes: which there are, whose they are, how much memory they use."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path


def descendants() -> list[int]:
    """The processes that this one or its descendants started and that are still there."""
    parents = {process: _stat(process, 1) for process in processes()}
    found = [os.getpid()]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]


def memory(isolated: bool) -> int:
    """Bytes that only the program's processes use, as far as the kernel tells."""
    total = 0
    for process in processes() if isolated else descendants():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if process != os.getpid():
                _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
                total += (int(resident) - int(shared)) * resource.getpagesize()
    return total


def processes() -> Iterator[int]:
    """All that this process can see."""
    with contextlib.suppress(OSError):
        yield from [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(process: int, field: int) -> int:
    """A number of /proc/<process>/stat, counted from the process's state; -1 when the process is gone."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[field])
    return -1


def threads(process: int) -> int:
    """How many threads a process has; 0 when it is gone."""
    return max(0, _stat(process, 17))


def user(process: int) -> int:
    """Whose process it is; -1 when it is gone."""
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{process}").st_uid
    return -1
