"""Hostile programs: each ends in time, the host is unharmed, and nothing of them is left.

`pytest -s` prints a table of what became of each.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from rewards.sandbox import Isolation, Outcome
from tests.rewards.sandboxes import (
    LIMITS_ONLY,
    NAMESPACES,
    ROOT,
    SMALL,
    children,
    descriptors,
    execute,
    need_proc,
    scratches,
    survivors,
)
from tests.rewards.sandboxes import own_scratches as own_scratches

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    rows: list[str] = []
    yield rows
    print("\n" + "\n".join(rows))


Check = Callable[[Outcome], bool]
HOSTILE: dict[str, tuple[str, dict[str, float], Check]] = {
    "fork bomb": (
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
        {"timeout": 1},
        lambda it: it.ended == "timeout",
    ),
    "fork bomb that does not wait": (
        "import os\nwhile True:\n  try:\n    if os.fork(): os._exit(0)\n  except OSError: pass",
        {},
        lambda it: it.status == 0,
    ),
    "as many processes as it can": (
        "import os, time\nn = 1\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(60)\n    n += 1\n"
        "except OSError: print(n)",
        {},
        lambda it: it.status == 0 and 2 <= int(it.stdout) <= 12,
    ),
    "as many threads as it can": (
        "import threading, time, os\nn = 1\ntry:\n  while True:\n    threading.Thread(target=time.sleep, args=(60,), "
        "daemon=True).start(); n += 1\nexcept RuntimeError: print(n, flush=True); os._exit(0)",
        {"memory_mb": 1024},
        lambda it: it.status == 0 and 2 <= int(it.stdout) <= 12,
    ),
    "memory hog": ("x = bytearray(10**9)", {}, lambda it: it.status == 1 and "MemoryError" in it.stderr),
    "memory hog of many processes": (
        "import os, time\nfor _ in range(8):\n  if os.fork() == 0: x = bytearray(b'1') * (60 * 2**20); time.sleep(60)\n"
        "time.sleep(60)",
        {},
        lambda it: it.ended == "memory",
    ),
    "endless output": (
        "while True: print('x' * 1000)",
        {},
        lambda it: it.ended == "output" and len(it.stdout) < 200000,
    ),
    "endless errors": (
        "import os\nwhile True: os.write(2, b'x' * 65536)",
        {},
        lambda it: it.ended == "output" and len(it.stderr) < 200000,
    ),
    "endless loop": ("while True: pass", {"cpu_seconds": 1}, lambda it: it.status == -signal.SIGXCPU),
    "endless loop that ignores SIGXCPU": (
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        {"cpu_seconds": 1},
        lambda it: it.status == -signal.SIGKILL,
    ),
    "sleeping for ever": ("import time\ntime.sleep(9999)", {"timeout": 0.5}, lambda it: it.ended == "timeout"),
    "waiting for input": ("print(repr(input()))", {}, lambda it: it.status == 1 and "EOFError" in it.stderr),
    "a large file": (
        "f = open('f', 'wb')\nwhile True: f.write(b'x' * 2**20); f.flush()",
        {},
        lambda it: it.status in (1, -signal.SIGXFSZ),
    ),
    "a background daemon": (
        "import os, sys, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
        "[os.close(n) for n in (0, 1, 2)]\nwhile True:\n"
        "  try: open('heartbeat', 'w').write('x')\n  except OSError: pass\n  time.sleep(0.01)",
        {},
        lambda it: it.status == 0,
    ),
    "daemons that outlive a timeout": (
        "import os, time\nfor _ in range(5):\n  if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: "
        "time.sleep(999)\n    os._exit(0)\ntime.sleep(999)",
        {"timeout": 1},
        lambda it: it.ended == "timeout",
    ),
    "closing stdout and going on": (
        "import os, time\nos.close(1); os.close(2)\ntime.sleep(999)",
        {"timeout": 0.5},
        lambda it: it.ended == "timeout",
    ),
    "closing stdout and failing": ("import os\nos.close(1); os.close(2)\nos._exit(3)", {}, lambda it: it.status == 3),
    "files that resist removal": (
        "import os\nos.makedirs('a/b/c')\nopen('a/b/c/f', 'w').close()\n"
        "for p in ('a/b/c/f', 'a/b/c', 'a/b', 'a', '.'): os.chmod(p, 0)",
        {},
        lambda it: it.status == 0,
    ),
    "a deep tree": (
        "import os\nfor _ in range(1100): os.mkdir('d'); os.chdir('d')",
        {},
        lambda it: it.status == 0,
    ),
    "killing its parent": (
        "import os, time\nfor it in (os.getppid(), 1):\n  try: os.kill(it, 9)\n  except OSError: pass\n"
        "time.sleep(0.1)\nprint('done')",
        {},
        lambda it: it.status == 0 and it.stdout == "done\n",
    ),
    "killing everything": (
        "import os\nfor n in (15, 19, 9):\n  try: os.kill(-1, n)\n  except OSError: pass\nprint('done')",
        {},
        lambda it: it.status == 0 and it.stdout == "done\n",
    ),
}
AS_SAME_USER = {"killing its parent", "killing everything"}
"""What only namespaces or a user of its own protect from."""
ALIKE = {"memory hog", "endless errors", "endless loop", "endless loop that ignores SIGXCPU", "waiting for input"}
"""What the same code of ours meets with and without namespaces, and so is tried once."""


@pytest.mark.parametrize(
    ("name", "within"),
    [(name, NAMESPACES) for name in HOSTILE] + [(name, LIMITS_ONLY) for name in HOSTILE if name not in ALIKE],
    ids=lambda value: value if isinstance(value, str) else ("best" if value is NAMESPACES else "limits"),
)
def test_hostile_program(name: str, within: Isolation, table: list[str]) -> None:
    if not within.namespaces and not ROOT and name in AS_SAME_USER:
        pytest.skip("limits only, as the same user, do not protect from this")
    if name == "memory hog of many processes":
        need_proc()
    code, limits, check = HOSTILE[name]
    marker, before, scratch, others = f"marker-{uuid.uuid4()}", descriptors(), scratches(), children()
    started = time.monotonic()
    outcome = execute(code, within, marker, **limits)
    seconds = time.monotonic() - started
    how = outcome.ended or f"status {outcome.status}"
    table.append(f"{name:36} {'namespaces' if within.namespaces else 'limits':10} {how:10} {seconds:6.2f} s")
    assert check(outcome), outcome
    assert survivors(marker) == []
    assert set(children()) <= set(others)
    assert descriptors() <= before
    assert scratches() == scratch
    assert seconds < limits.get("timeout", SMALL.timeout) + 20


@pytest.mark.skipif(not ROOT, reason="all other tests are this one, without root")
def test_an_ordinary_user_is_protected_too() -> None:
    """A fork bomb and a memory hog, with namespaces where that user may have them, and without."""
    system = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if system is None or subprocess.run([system, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode:
        pytest.skip("no Python 3.11 outside root's directory")
    code = (
        "import sys\nfrom rewards.sandbox import *\n"
        f"program = Program(command=[sys.executable, '-c', {HOSTILE['as many processes as it can'][0]!r}])\n"
        "for within in (isolation(), Isolation(False, '')):\n"
        "    outcome = run(program, Limits(timeout=60, processes=12), within)\n"
        "    print(outcome.status, outcome.stdout.strip())\n"
        "    hog = Program(command=[sys.executable, '-c', 'x = bytearray(10**9)'])\n"
        "    print('MemoryError' in run(hog, Limits(timeout=60, memory_mb=128), within).stderr)"
    )
    nobody_else = 20_000 + os.getpid() % 40_000  # another test run's processes would count as this user's
    host = subprocess.run(
        [system, "-B", "-c", code],
        user=nobody_else,
        group=nobody_else,
        extra_groups=[],
        env={"PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if "PermissionError" in host.stderr or "ModuleNotFoundError" in host.stderr:
        pytest.skip("the project is closed to other users")
    lines = host.stdout.split("\n")
    assert lines[1] == lines[3] == "True", host
    for line in (lines[0], lines[2]):
        status, count = line.split()
        assert (status, 2 <= int(count) <= 12) == ("0", True)
