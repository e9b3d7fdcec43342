"""Fixtures for all tests: the tiny random model, its tokenizer, a CPU with one thread."""

import pytest

from conf.schema import ModelConfig
from stages.contract import Hardware, ModelRef
from stages.identity import resolve_model


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
