"""Fixtures for the model tests: adapters of every kind on the tiny model, and editable copies of it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from conf.schema import ModelConfig
from stages import tiny as tiny_model
from stages.adapters import save_adapter
from stages.contract import Adapter, Hardware, ModelRef
from stages.fold import load_folded
from stages.identity import resolve_model
from stages.models import load_base

MakeAdapter = Callable[..., Adapter]


@pytest.fixture
def make_adapter(tmp_path: Path, hardware: Hardware) -> MakeAdapter:
    """Make an adapter that belongs on a model, with random weights of a given size."""

    def make(start: ModelRef, name: str = "adapter", std: float = 0.02, **lora: Any) -> Adapter:
        model = load_folded(start, hardware).model if start.adapters else load_base(start, hardware)
        settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", **lora}
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
        generator = torch.Generator().manual_seed(sum(name.encode()))
        with torch.no_grad():
            for key, weight in adapted.named_parameters():
                if "lora_" in key:
                    weight.copy_(torch.randn(weight.shape, generator=generator) * (std if "_B" in key else 0.1))
        return save_adapter(adapted, start, tmp_path / name)

    return make


@pytest.fixture
def copy_of_tiny(tmp_path: Path) -> Callable[..., Path]:
    """Copy the tiny model to a directory of its own, to be changed."""

    def copy(name: str = "model") -> Path:
        return Path(shutil.copytree(tiny_model.directory(), tmp_path / name))

    return copy


@pytest.fixture
def local() -> Callable[..., ModelRef]:
    """The reference of a model in a directory, with further settings of the model section."""

    def resolve(directory: Path, **settings: Any) -> ModelRef:
        return resolve_model(ModelConfig(id=str(directory), **settings), "float32")

    return resolve
