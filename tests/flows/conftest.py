"""Fixtures for tests of whole runs."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.forking import Forker
from tests.flows.scheduling import write_project
from tests.flows.servers import Server


@pytest.fixture(scope="session")
def forker(prefect_server: None) -> Iterator[Forker]:
    """Runs in processes of their own, on the session's Prefect server."""
    from prefect.settings import PREFECT_API_URL

    forker = Forker({"PREFECT_API_URL": PREFECT_API_URL.value()})
    yield forker
    forker.close()


@pytest.fixture
def small_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project of `tests.flows.scheduling`, as the current directory."""
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RATCHET_RUNS_DIR", raising=False)
    return tmp_path


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port at which nobody listens, and that nobody else is given meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[Server]:
    """An MLflow server with a database of its own."""
    options = "--backend-store-uri sqlite:///mlflow.db --artifacts-destination artifacts --workers 1"
    server = Server(tmp_path, f"mlflow server --host 127.0.0.1 --port {{port}} {options}")
    server.start()
    yield server
    server.stop()
