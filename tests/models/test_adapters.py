"""Adapters on disk: the same adapter gives the same bytes, and its lineage names what it belongs on."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from stages.adapters import read_adapter
from stages.contract import FOLD_VERSION, ModelRef

_SAVE = """
import sys
from pathlib import Path
import torch
from peft import LoraConfig, get_peft_model
from conf.schema import ModelConfig
from stages.adapters import save_adapter
from stages.contract import Hardware
from stages.identity import resolve_model
from stages.models import load_base
ref = resolve_model(ModelConfig(id="tiny:random"), "float32")
torch.manual_seed(0)
model = get_peft_model(load_base(ref, Hardware()), LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))
print(save_adapter(model, ref, Path(sys.argv[1])).sha256)
"""


def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    """The names of modules are kept in a set by peft, whose order changes with every process."""
    hashes = []
    for seed in ("1", "2"):
        command = [sys.executable, "-W", "ignore", "-c", _SAVE, str(tmp_path / seed)]
        environment = {"PYTHONHASHSEED": seed, **_environment()}
        hashes.append(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    assert hashes[0] == hashes[1]
    for path in (tmp_path / "1").iterdir():
        assert path.read_bytes() == (tmp_path / "2" / path.name).read_bytes()


def _environment() -> dict[str, str]:
    import os

    return {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}


def test_the_lineage(tiny: ModelRef, make_adapter: Any) -> None:
    first = make_adapter(tiny, "first")
    second = make_adapter(tiny.with_adapter(first), "second")
    assert json.loads((second.path / "lineage.json").read_text()) == {
        "format": 1,
        "base": {"id": "tiny:random", "revision": None, "sha256": tiny.sha256},
        "adapters": [first.sha256],
        "dtype": "float32",
        "fold_version": FOLD_VERSION,
        "start": tiny.with_adapter(first).identity,
    }
    bases = [
        json.loads((a.path / "adapter_config.json").read_text())["base_model_name_or_path"] for a in (first, second)
    ]
    assert bases == ["tiny:random", f"ratchet-folded:{tiny.with_adapter(first).identity}"]


def test_the_hash_is_over_weights_and_configuration(tiny: ModelRef, make_adapter: Any) -> None:
    adapter = make_adapter(tiny)
    assert read_adapter(adapter.path) == adapter
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        path = adapter.path / name
        content = path.read_bytes()
        path.write_bytes(content.replace(b'"r": 4', b'"r": 5') if name.endswith("json") else content[:-1] + b"\0")
        assert read_adapter(adapter.path).sha256 != adapter.sha256
        path.write_bytes(content)
    assert read_adapter(adapter.path) == adapter
