"""One Prefect server for the whole session, and one finished smoke run that many tests look at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.cli import main


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A temporary Prefect server with a database of its own."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=300):
        yield


@pytest.fixture(scope="session")
def smoke(prefect_server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs directory of one finished `ratchet run experiment=smoke`."""
    runs_dir = tmp_path_factory.mktemp("smoke") / "runs"
    assert main(["run", "experiment=smoke", f"runs_dir={runs_dir}", "--debug"]) == 0
    return runs_dir
