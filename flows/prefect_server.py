"""Prefect's server: the user's, or a temporary one of this process, which is started in turn with other processes.

All temporary servers share one database in Prefect's home. The first start migrates it, and two that do so at the same
time fail half-way.
"""

from filelock import FileLock
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_HOME


def start_server() -> None:
    """Start a temporary server, unless the user has one; it ends with this process."""
    if PREFECT_API_URL.value():
        return
    home = PREFECT_HOME.value()
    home.mkdir(parents=True, exist_ok=True)
    with FileLock(home / ".ratchet.lock"), get_client(sync_client=True):
        pass
