"""Prefect's server: the user's, or a temporary one of this process, which is started in turn with other processes.

All temporary servers share one database in Prefect's home. The first start migrates it, and two that do so at the same
time fail half-way. A temporary server outlives a process that is killed; the next one that starts ends it.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock
from prefect.client.orchestration import get_client
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_HOME,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    get_current_settings,
    temporary_settings,
)

from conf.errors import UserError
from flows.liveness import hold, is_alive

_APPLICATION = "prefect.server.api.server:create_app"
_USUAL_PORT = 4200


def start_server() -> None:
    """Start a temporary server, unless the user has one or this process has started it before; it ends with us.

    Raises:
        UserError: The user's does not answer.
    """
    if PREFECT_API_URL.value():
        _ask_for_a_sign_of_life()
        return
    from prefect.server.api.server import SubprocessASGIServer  # all of Prefect's server: 2 s

    if SubprocessASGIServer().running:
        return
    servers = PREFECT_HOME.value() / "ratchet"
    servers.mkdir(parents=True, exist_ok=True)
    with FileLock(servers / ".lock"):
        end_orphans(servers)
        with get_client(sync_client=True):  # starts it, and waits until it answers
            process = SubprocessASGIServer().server_process
        if process is not None:
            ours = servers / f"{socket.gethostname()}-{process.pid}"
            ours.mkdir(exist_ok=True)
            hold(ours)


_TEMPORARY = "RATCHET_TEMPORARY_SERVER"
"""Environment variable by which processes of ours know that PREFECT_API_URL is no server of the user's."""


@contextlib.contextmanager
def shared_server() -> Iterator[None]:
    """While it lasts, the processes we start use the same server as this one, which has started or found it."""
    if PREFECT_API_URL.value():
        yield
        return
    from prefect.server.api.server import SubprocessASGIServer

    url = SubprocessASGIServer().api_url
    os.environ[_TEMPORARY] = url
    try:
        with temporary_settings({PREFECT_API_URL: url}):
            yield
    finally:
        del os.environ[_TEMPORARY]


def users_server() -> str | None:
    """The address of the user's server; None where a temporary one stands in."""
    url = PREFECT_API_URL.value()
    return None if url == os.environ.get(_TEMPORARY) else url


@contextlib.contextmanager
def whole_server() -> Iterator[None]:
    """A server that also keeps schedules, which a temporary one does not; it ends with the context.

    It is the user's where he has one. Otherwise it has the same database as the temporary ones, listens on this machine
    alone (at Prefect's usual port, if that is free), and Ctrl-C in the terminal does not reach it.

    Raises:
        UserError: The user's does not answer.
    """
    if PREFECT_API_URL.value():
        _ask_for_a_sign_of_life()
        yield
        return
    servers = PREFECT_HOME.value() / "ratchet"
    servers.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    with FileLock(servers / ".lock"):
        end_orphans(servers)
        options = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "error", "--lifespan", "on"]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "uvicorn", "--factory", _APPLICATION, *options],
            env={**os.environ, **get_current_settings().to_environment_variables(exclude_unset=True)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        ours = servers / f"{socket.gethostname()}-{process.pid}"
        ours.mkdir(exist_ok=True)
        hold(ours)
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}):
            _wait_for(process)
    try:
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}):
            yield
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    """Prefect's usual port, or another one when something listens there."""
    for port in (_USUAL_PORT, 0):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", port))
            return int(free.getsockname()[1])
    raise UserError("127.0.0.1: has no free port for Prefect's server")


def _wait_for(process: "subprocess.Popen[bytes]") -> None:
    """Until a server that was started answers; its first start migrates the database."""
    deadline = time.monotonic() + PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value()
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(UserError):
            _ask_for_a_sign_of_life()
            return
        time.sleep(0.2)
    process.terminate()
    raise UserError("Prefect's server does not start; `prefect server start` shows why")


def server_name() -> str:
    """The server, for people to read."""
    url = users_server()
    return f"Prefect's server at {url}" if url else "Prefect's temporary server"


def unreachable(error: Exception) -> UserError:
    """What to tell a user whose server does not answer."""
    return UserError(
        f"PREFECT_API_URL: {server_name()} does not answer ({error or type(error).__name__}); start it, or unset "
        "PREFECT_API_URL: a run then brings one of its own"
    )


def _ask_for_a_sign_of_life() -> None:
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(sync_client=True, httpx_settings={"timeout": 10}) as client,
    ):
        error = client.api_healthcheck()
    if error is not None:
        raise unreachable(error)


def end_orphans(servers: Path) -> None:
    """End the servers of this host whose processes are gone."""
    for folder in servers.glob(f"{socket.gethostname()}-*"):
        if not is_alive(folder):
            pid = int(folder.name.rsplit("-", 1)[1])
            if is_server(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            shutil.rmtree(folder)


def is_server(pid: int) -> bool:
    """Whether the process is a temporary server still, and not another that was given its number."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return _APPLICATION.encode() in command
