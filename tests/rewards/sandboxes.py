"""What the tests of the sandbox share: running a program in it, and looking for what it left on the host."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rewards.sandbox import Isolation, Limits, Outcome, Program, isolation, run

NAMESPACES = isolation()
LIMITS_ONLY = Isolation(False, "limits only, asked for by a test")
ROOT = os.geteuid() == 0
SMALL = Limits(timeout=60, cpu_seconds=20, memory_mb=128, file_mb=4, processes=12, output_kb=64)
needs_namespaces = pytest.mark.skipif(not NAMESPACES.namespaces, reason=NAMESPACES.description)


@pytest.fixture(autouse=True)
def own_scratches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scratch directories where nobody else has any; the sandbox's user may enter as it may enter /tmp."""
    with tempfile.TemporaryDirectory(prefix="ratchet-test-") as folder:
        os.chmod(folder, 0o711)
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


def python(within: Isolation) -> str:
    """A Python that the sandbox's user may execute: without namespaces, root's own directory is closed to it."""
    if within.namespaces or not ROOT:
        return sys.executable
    found = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if found is None:
        pytest.skip("no Python outside root's directory")
    return found


def execute(code: str, within: Isolation = NAMESPACES, *arguments: str, **limits: float) -> Outcome:
    program = Program(
        command=[python(within), "-I", "-S", "{scratch}/program.py", *arguments], files={"program.py": code.encode()}
    )
    return run(program, Limits(**{**vars(SMALL), **limits}), within)


def survivors(marker: str) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and marker in (process / "cmdline").read_text():
                found.append(process.name)
        except OSError:
            pass
    return found


def descriptors() -> set[str]:
    """What this process has open, but for sockets: threads of other libraries open and close theirs at any time."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return {each for each in found if "socket:" not in each}


def children() -> list[int]:
    """Processes of this one, zombies too."""
    mine = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "stat").read_text().rpartition(")")[2].split()[1] == str(
                os.getpid()
            ):
                mine.append(int(process.name))
        except OSError:
            pass
    return mine


def scratches() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("ratchet-sandbox-")}


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def need_proc() -> None:
    """Skip where a container around us forbids to mount /proc."""
    if NAMESPACES.namespaces and execute("import os\nprint(len(os.listdir('/proc')))").stdout == "0\n":
        pytest.skip("/proc cannot be mounted here")
