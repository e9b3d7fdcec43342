"""Fixtures for tests of whole runs."""

from collections.abc import Iterator

import pytest

from tests.flows.forking import Forker


@pytest.fixture(scope="session")
def forker(prefect_server: None) -> Iterator[Forker]:
    """Runs in processes of their own, on the session's Prefect server."""
    from prefect.settings import PREFECT_API_URL

    forker = Forker({"PREFECT_API_URL": PREFECT_API_URL.value()})
    yield forker
    forker.close()
