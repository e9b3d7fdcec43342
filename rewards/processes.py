"""What /proc says of processes: which there are, whose they are, how much memory they use.

Like everything the launcher imports, it imports little itself: a process is started for every run.
"""

import os
import resource


def descendants() -> list[int]:
    """The processes that this one or its descendants started and that are still there."""
    parents = {process: _stat(process, 1) for process in processes()}
    found = [os.getpid()]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]


def memory(isolated: bool) -> int:
    """Bytes that only the program's processes use, as far as the kernel tells."""
    pages = 0
    for process in processes() if isolated else descendants():
        if process != os.getpid() and (sizes := _read(f"/proc/{process}/statm").split()):
            pages += int(sizes[1]) - int(sizes[2])
    return pages * resource.getpagesize()


def processes() -> list[int]:
    """All that this process can see; none without /proc."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def threads(process: int) -> int:
    """How many threads a process has; 0 when it is gone."""
    return max(0, _stat(process, 17))


def user(process: int) -> int:
    """Whose process it is; -1 when it is gone."""
    try:
        return os.stat(f"/proc/{process}").st_uid
    except OSError:
        return -1


def _stat(process: int, field: int) -> int:
    """A number of /proc/<process>/stat, counted from the process's state; -1 when the process is gone."""
    fields = _read(f"/proc/{process}/stat").rpartition(")")[2].split()
    return int(fields[field]) if fields else -1


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
