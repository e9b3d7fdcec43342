"""The program `rewards.sandbox` starts for every run: it makes the sandbox, and reports what became of the program.

It is a process of its own because the one that calls a reward has threads, and nothing may happen between fork and
exec there. It imports nothing outside the standard library and its two siblings.
"""

from __future__ import annotations

import marshal
import os
import signal
import sys

from rewards import namespaces
from rewards.removal import remove
from rewards.supervise import supervise

TYPE_CHECKING = False  # `typing` alone would take as long to import as all the rest
if TYPE_CHECKING:
    from typing import Any

    from rewards.supervise import Owner


def main() -> None:
    """Read a run from standard input; write a report, or `{"error": ...}`, to standard output.

    Both by `marshal`: the same Python is at either end, and it needs no import.
    """
    namespaces.die_with_parent()
    spec = marshal.load(sys.stdin.buffer)
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # out of memory, the kernel kills in here first
    except OSError:
        pass
    try:
        if spec["isolated"]:
            _isolated(spec)
        else:
            _send(_limited(spec))
    except OSError as error:
        _send({"error": error.strerror or str(error)})


def _isolated(spec: dict[str, Any]) -> None:
    """Run in new namespaces. Their first process reports; when it ends, the kernel ends everything in them."""
    owner = _spare_user() if os.geteuid() == 0 else None
    namespaces.enter()
    first = os.fork()
    if first == 0:
        namespaces.die_with_parent()
        namespaces.hide()
        try:
            user, group = owner or (os.geteuid(), os.getegid())
            namespaces.build_root(spec["visible"], spec["limits"]["file_mb"], user, group)
            _send(supervise(spec, namespaces.SCRATCH, owner, isolated=True))
        except OSError as error:
            _send({"error": error.strerror or str(error)})
        finally:
            os._exit(0)
    os.waitpid(first, 0)


def _limited(spec: dict[str, Any]) -> dict[str, Any]:
    """Run under limits only, and as another user where this one is root."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    namespaces.die_with_parent(signal.SIGTERM)
    namespaces.hide()
    namespaces.adopt_orphans()
    owner = _spare_user() if os.geteuid() == 0 else None
    if owner is not None:
        os.chown(spec["scratch"], *owner)
    try:
        return supervise(spec, spec["scratch"], owner, isolated=False)
    except KeyboardInterrupt:  # the host ended or gave up, or the program sent the signal
        remove(spec["scratch"])
        return {"status": None, "ended": "sandbox", "stdout": b"", "stderr": b"", "seconds": 0.0}


def _spare_user() -> Owner:
    """A user and group that nobody else has, different for every run; None where this process may not choose."""
    ids = []
    for kind in ("uid", "gid"):
        with open(f"/proc/self/{kind}_map") as extents:
            end, count = max((int(first) + int(count), int(count)) for first, _, count in map(str.split, extents))
        if count < 2:
            return None
        ids.append(min(end, 2**31) - 2 - os.getpid() % max(1, min(2**22, count // 8)))
    return ids[0], ids[1]


def _send(report: dict[str, Any]) -> None:
    data = marshal.dumps(report)
    while data:
        data = data[os.write(1, data) :]
