"""What a program in the sandbox can reach, and what it is given: files, network, environment, privileges."""

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rewards.sandbox import Isolation, Limits, Program, SandboxError, run
from tests.rewards.sandboxes import (
    LIMITS_ONLY,
    NAMESPACES,
    ROOT,
    children,
    descriptors,
    execute,
    need_proc,
    needs_namespaces,
    python,
    scratches,
    survivors,
    wait_until,
)
from tests.rewards.sandboxes import own_scratches as own_scratches

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")


@pytest.mark.parametrize("within", [NAMESPACES, LIMITS_ONLY], ids=["best", "limits"])
def test_writing_outside(within: Isolation, tmp_path: Path) -> None:
    """To the host's temporary directory, the project, a home directory, the system: nothing changes there."""
    if not within.namespaces and not ROOT:
        pytest.skip("limits only, as the same user, do not protect from this")
    secret = tmp_path / "secret.txt"
    answers = uuid.uuid4().hex
    new = f"new-{answers}"
    secret.write_text(answers)
    secret.chmod(0o600)
    targets = [
        tmp_path / new,
        secret,
        Path(__file__),
        Path.home() / new,
        Path(sys.prefix) / new,
        Path("/usr") / new,
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
        timeout=300,
        check=True,
    )
    assert "LANG=C.UTF-8" in host.stdout  # its own environment it does see
    assert "hunter2" not in host.stdout


@needs_namespaces
def test_environment_and_directory() -> None:
    """Little of the first, nothing of ours in the second, no descriptor but the standard three (and listdir's)."""
    need_proc()
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
    need_proc()
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
    before, threads, others = descriptors(), set(threading.enumerate()), children()
    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(lambda n: execute(f"import os\nopen('f', 'x')\nprint({n})"), range(12)))
    assert [outcome.stdout for outcome in outcomes] == [f"{n}\n" for n in range(12)]
    assert descriptors() <= before and set(threading.enumerate()) <= threads
    assert set(children()) <= set(others)


@pytest.mark.parametrize("within", [NAMESPACES, LIMITS_ONLY], ids=["best", "limits"])
def test_a_host_that_is_killed_takes_its_sandboxes_along(within: Isolation) -> None:
    marker, before = f"marker-{uuid.uuid4()}", scratches()
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
    wait_until(lambda: not survivors(marker) and scratches() == before)


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
