"""Prefect's server: the user's, or a temporary one of this process, which is started in turn with other processes.

All temporary servers share one database in Prefect's home. The first start migrates it, and two that do so at the same
time fail half-way.
"""

from filelock import FileLock
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, PREFECT_HOME, temporary_settings

from conf.errors import UserError


def start_server() -> None:
    """Start a temporary server, unless the user has one; it ends with this process.

    Raises:
        UserError: The user's does not answer.
    """
    if PREFECT_API_URL.value():
        _ask_for_a_sign_of_life()
        return
    home = PREFECT_HOME.value()
    home.mkdir(parents=True, exist_ok=True)
    with FileLock(home / ".ratchet.lock"), get_client(sync_client=True):
        pass


def server_name() -> str:
    """The server, for people to read."""
    url = PREFECT_API_URL.value()
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
