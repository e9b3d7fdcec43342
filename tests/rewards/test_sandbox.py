"""Hostile programs: each ends in time, the host is unharmed, and nothing of them is left.

`pytest -s` prints a table of what became of each.
"""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rewards.sandbox import Isolation, Limits, Outcome, Program, SandboxError, isolation, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")

NAMESPACES = isolation()
LIMITS_ONLY = Isolation(False, "limits only, asked for by a test")
ROOT = os.geteuid() == 0
SMALL = Limits(timeout=20, cpu_seconds=20, memory_mb=128, file_mb=4, processes=12, output_kb=64)
needs_namespaces = pytest.mark.skipif(not NAMESPACES.namespaces, reason=NAMESPACES.description)


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
    return set(os.listdir("/proc/self/fd"))


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
        {"timeout": 1},
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
        "[os.close(n) for n in (0, 1, 2)]\nwhile True: open('heartbeat', 'w').write('x'); time.sleep(0.01)",
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
    code, limits, check = HOSTILE[name]
    marker, before, scratch = f"marker-{uuid.uuid4()}", descriptors(), scratches()
    started = time.monotonic()
    outcome = execute(code, within, marker, **limits)
    seconds = time.monotonic() - started
    how = outcome.ended or f"status {outcome.status}"
    table.append(f"{name:36} {'namespaces' if within.namespaces else 'limits':10} {how:10} {seconds:6.2f} s")
    assert check(outcome), outcome
    assert survivors(marker) == []
    assert children() == []
    assert descriptors() == before
    assert scratches() == scratch
    assert seconds < 25


def scratches() -> set[str]:
    return {name for name in os.listdir("/tmp") if name.startswith("ratchet-sandbox-")}


@pytest.mark.parametrize("within", [NAMESPACES, LIMITS_ONLY], ids=["best", "limits"])
def test_writing_outside(within: Isolation, tmp_path: Path) -> None:
    """To the host's temporary directory, the project, a home directory, the system: nothing changes there."""
    if not within.namespaces and not ROOT:
        pytest.skip("limits only, as the same user, do not protect from this")
    secret = tmp_path / "secret.txt"
    answers = uuid.uuid4().hex
    secret.write_text(answers)
    secret.chmod(0o600)
    targets = [
        tmp_path / "new",
        secret,
        Path(__file__),
        Path.home() / "new",
        Path(sys.prefix) / "new",
        Path("/usr/new"),
    ]
    code = (
        "import os, sys\nfor path in sys.argv[1:]:\n  for act in (lambda: open(path, 'a').write('x'), "
        "lambda: os.remove(path), lambda: os.chmod(path, 0o777), lambda: os.symlink('/', path)):\n"
        "    try: act(); print('wrote', path)\n    except OSError: pass\n"
        "  try: print(open(path).read())\n  except OSError: pass"
    )
    outcome = execute(code, within, *map(str, targets))
    assert outcome.status == 0
    assert not [line for line in outcome.stdout.splitlines() if line.startswith("wrote ")]
    assert answers not in outcome.stdout
    assert secret.read_text() == answers
    assert [target.exists() for target in targets] == [False, True, True, False, False, False]


@needs_namespaces
def test_home_data_and_project_are_not_there() -> None:
    outcome = execute(
        "import os, sys\nprint(*[os.path.exists(path) for path in sys.argv[1:]])",
        NAMESPACES,
        __file__,
        "/var",
        "/run",
        "/home",
    )
    assert outcome.stdout == "False False False False\n"


@needs_namespaces
def test_all_files_together_are_bounded() -> None:
    code = (
        "n = 0\ntry:\n  while True:\n    with open(f'f{n}', 'wb') as f: f.write(b'x' * 2**20)\n    n += 1\n"
        "except OSError: print(n)"
    )
    assert int(execute(code).stdout) < 4


@needs_namespaces
def test_no_network() -> None:
    """TCP and UDP to a listener of the host, and a Unix socket in the abstract name space."""
    name = f"\0ratchet-{uuid.uuid4()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(name)
        unix.listen()
        tcp.setblocking(False)
        unix.setblocking(False)
        code = (
            "import socket, sys\n"
            f"for family, address in ((socket.AF_INET, ('127.0.0.1', {tcp.getsockname()[1]})), "
            f"(socket.AF_UNIX, {name!r}), (socket.AF_INET, ('1.1.1.1', 53))):\n"
            "  s = socket.socket(family); s.settimeout(2)\n"
            "  try: s.connect(address); print('connected')\n  except OSError as error: print('refused')"
        )
        assert execute(code).stdout == "refused\n" * 3
        for listener in (tcp, unix):
            with pytest.raises(BlockingIOError):
                listener.accept()


SPY = """
import os
for process in [name for name in os.listdir('/proc') if name.isdigit()] + ['self']:
    for file in ('environ', 'cmdline', 'mem', 'cwd', 'root', 'fd/0'):
        try: print(open(f'/proc/{process}/{file}', 'rb').read())
        except OSError: pass
"""


@pytest.mark.parametrize("within", [NAMESPACES, LIMITS_ONLY], ids=["best", "limits"])
def test_environment_of_the_host_cannot_be_read(within: Isolation) -> None:
    if not within.namespaces and not ROOT:
        pytest.skip("limits only, as the same user, do not protect from this")
    code = (
        "from rewards.sandbox import *\n"
        f"program = Program(command=[{python(within)!r}, '-I', '-S', '-c', {SPY!r}])\n"
        f"print(run(program, Limits(), {within!r}).stdout)"
    )
    host = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.getcwd(), "API_KEY": "hunter" + "2"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "LANG=C.UTF-8" in host.stdout  # its own environment it does see
    assert "hunter2" not in host.stdout


@needs_namespaces
def test_environment_and_directory() -> None:
    """Little of the first, nothing of ours in the second, no descriptor but the standard three (and listdir's)."""
    outcome = execute("import os\nprint(*sorted(os.environ), os.getcwd(), os.listdir(), *os.listdir('/proc/self/fd'))")
    assert outcome.stdout == ("HOME LANG OMP_NUM_THREADS PATH PYTHONHASHSEED TMPDIR /scratch ['program.py'] 0 1 2 3\n")


@pytest.mark.skipif(ROOT, reason="root's programs run as another user, who cannot")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_that_kills_its_launcher_is_told_and_ended(number: int) -> None:
    marker = f"marker-{uuid.uuid4()}"
    code = f"import os, time\nos.fork() or os.setsid()\nos.kill(os.getppid(), {number})\ntime.sleep(99)"
    assert execute(code, LIMITS_ONLY, marker).ended == "sandbox"
    wait_until(lambda: not survivors(marker))


@needs_namespaces
def test_privileges_cannot_be_gained() -> None:
    """No capability, no mount, no new user namespace, no root."""
    code = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "print(libc.mount(b'x', b'/scratch', b'tmpfs', 0, 0), libc.unshare(0x10000000), libc.unshare(0x20000))\n"
        "try: os.setuid(0); print('root', os.getuid())\nexcept OSError: print('refused')\n"
        "print([line for line in open('/proc/self/status') if line.startswith('CapEff')][0].split()[1])"
    )
    assert execute(code).stdout == "-1 -1 -1\nrefused\n0000000000000000\n"


def test_symbolic_links_lead_nowhere(tmp_path: Path) -> None:
    """Removing the scratch directory follows no link that the program left."""
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o500)
    (kept / "file").write_text("kept", encoding="utf-8") if ROOT else None
    code = (
        f"import os\nos.symlink({str(kept)!r}, 'link')\nos.mkdir('d')\nos.symlink({str(kept)!r}, 'd/link')\n"
        f"os.remove('program.py')\nos.symlink({str(kept / 'file')!r}, 'program.py')\nos.chmod('d', 0)"
    )
    before = scratches()
    assert execute(code, LIMITS_ONLY).status == 0
    assert stat.S_IMODE(kept.stat().st_mode) == 0o500
    assert not ROOT or (kept / "file").read_text(encoding="utf-8") == "kept"
    assert scratches() == before


def test_many_at_once_from_threads() -> None:
    """Each gets its own answer; the main thread plays no part."""
    before, threads = descriptors(), threading.active_count()
    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(lambda n: execute(f"import os\nopen('f', 'x')\nprint({n})"), range(12)))
    assert [outcome.stdout for outcome in outcomes] == [f"{n}\n" for n in range(12)]
    assert (descriptors(), threading.active_count(), children()) == (before, threads, [])


@pytest.mark.parametrize("within", [NAMESPACES, LIMITS_ONLY], ids=["best", "limits"])
def test_a_host_that_is_killed_takes_its_sandboxes_along(within: Isolation) -> None:
    marker = f"marker-{uuid.uuid4()}"
    sleep = "import os, time; os.fork() or os.setsid(); time.sleep(99)"
    code = (
        "import sys\nfrom rewards.sandbox import *\n"
        f"program = Program(command=[{python(within)!r}, '-c', {sleep!r}, {marker!r}])\n"
        f"run(program, Limits(timeout=99), {within!r})"
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as host:
        wait_until(lambda: len(survivors(f"\0{marker}\0")) == 2)
        host.kill()
    wait_until(lambda: not survivors(marker))


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


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
        "    outcome = run(program, Limits(processes=12), within)\n    print(outcome.status, outcome.stdout.strip())\n"
        "    hog = Program(command=[sys.executable, '-c', 'x = bytearray(10**9)'])\n"
        "    print('MemoryError' in run(hog, Limits(memory_mb=128), within).stderr)"
    )
    host = subprocess.run(
        [system, "-B", "-c", code],
        user=54321,
        group=54321,
        extra_groups=[],
        env={"PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "PermissionError" in host.stderr or "ModuleNotFoundError" in host.stderr:
        pytest.skip("the project is closed to other users")
    lines = host.stdout.split("\n")
    assert lines[1] == lines[3] == "True", host
    for line in (lines[0], lines[2]):
        status, count = line.split()
        assert (status, 2 <= int(count) <= 12) == ("0", True)


def test_input_and_output() -> None:
    program = Program(
        command=[sys.executable, "-I", "-c", "import sys; print(sys.stdin.read()[::-1]); sys.exit('no')"],
        stdin="né".encode() * 100_000,
    )
    outcome = run(program, Limits())
    assert (outcome.status, outcome.ended, outcome.stderr) == (1, None, "no\n")
    assert outcome.stdout == "én" * 100_000 + "\n"


@pytest.mark.parametrize("within", [NAMESPACES, LIMITS_ONLY], ids=["best", "limits"])
def test_a_program_that_cannot_be_started_is_an_error(within: Isolation) -> None:
    with pytest.raises(SandboxError, match="/usr/bin/no-such-program could not be started"):
        run(Program(command=["/usr/bin/no-such-program"]), Limits(), within)
