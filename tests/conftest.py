"""Fixtures for all tests: models, a CPU with one thread, one Prefect server, and one finished smoke run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.schema import ModelConfig
from stages.contract import Hardware, ModelRef
from stages.identity import resolve_model
from tests.flows.servers import free_port

_SETTINGS = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "PREFECT_API_", "PREFECT_HOME", "RATCHET_")


@pytest.fixture(scope="session", autouse=True)
def own_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Leases of this worker's own: several at once on a small machine shall not wait for each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_LEASES_DIR", str(tmp_path_factory.mktemp("leases")))
        yield


@pytest.fixture(autouse=True)
def no_settings_left_behind() -> Iterator[None]:
    """A test that leaves MLflow's, Prefect's or our variables behind would lead later ones of its worker astray."""

    def settings() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}

    before = settings()
    yield
    assert settings() == before


@pytest.fixture(scope="session")
def tiny_config() -> ModelConfig:
    """The model section of the tiny random model."""
    return ModelConfig(id="tiny:random")


@pytest.fixture(scope="session")
def hardware() -> Hardware:
    """One CPU thread in float32: fast for the tiny model, and reproducible."""
    return Hardware(device="cpu", dtype="float32", threads=1)


@pytest.fixture(scope="session")
def tiny(tiny_config: ModelConfig) -> ModelRef:
    """The tiny random model."""
    return resolve_model(tiny_config, "float32")


@pytest.fixture(scope="session")
def smollm2() -> ModelRef:
    """The real SmolLM2-135M; for tests marked slow."""
    return resolve_model(ModelConfig(), "float32")


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A temporary Prefect server with a database of its own."""
    from flows.environment import set_defaults

    set_defaults()  # before Prefect is imported
    from prefect.testing.utilities import prefect_test_harness

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prefect.testing.utilities._find_available_port", free_port)  # nobody else takes it meanwhile
        with prefect_test_harness(server_startup_timeout=300):
            yield


@pytest.fixture(scope="session")
def smoke(prefect_server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs directory of one finished `ratchet run experiment=smoke`."""
    from flows.cli import main

    runs_dir = tmp_path_factory.mktemp("smoke") / "runs"
    assert main(["run", "experiment=smoke", f"runs_dir={runs_dir}", "--debug"]) == 0
    return runs_dir
