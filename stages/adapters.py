"""Adapters on disk, and the lineage that says on which weights each of them belongs.

peft's own `base_model_name_or_path` cannot name folded weights, and loading a second-stage adapter on the plain base
is silent and wrong. So `lineage.json` names the exact start, and peft's field gets a name that nothing loads.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from peft import PeftModel

from conf.errors import UserError
from stages.cache import file_sha256, write_atomically
from stages.contract import FOLD_VERSION, Adapter, ModelRef

LINEAGE_FORMAT = 1
_WEIGHTS, _CONFIG, _LINEAGE = "adapter_model.safetensors", "adapter_config.json", "lineage.json"


class FoldError(UserError):
    """Adapters and base do not make a model that can be trusted; the message says which of the checks failed."""


def save_adapter(model: PeftModel, start: ModelRef, directory: Path) -> Adapter:
    """Write a trained adapter and its lineage.

    The same adapter gives the same bytes: peft writes sets in an order that changes from process to process.

    Args:
        model: The trained model; its adapter `default` (or its only one) is written.
        start: The folded model on which it was trained.
        directory: Where to write; made when absent.
    """
    name = "default" if "default" in model.peft_config else model.active_adapter
    # "auto" would ask the hub for the base model's vocabulary size.
    model.save_pretrained(directory, selected_adapters=[name], save_embedding_layers=False)
    if name != "default":
        for file in (directory / name).iterdir():
            file.replace(directory / file.name)
        shutil.rmtree(directory / name)
    (directory / "README.md").unlink(missing_ok=True)
    config = json.loads((directory / _CONFIG).read_text(encoding="utf-8"))
    loadable = start.config.id if not start.adapters else f"ratchet-folded:{start.identity}"
    config["base_model_name_or_path"] = loadable
    write_atomically(directory / _CONFIG, _canonical(config))
    write_atomically(directory / _LINEAGE, json.dumps(lineage(start), indent=2) + "\n")
    return read_adapter(directory)


def lineage(start: ModelRef) -> dict[str, Any]:
    """What an adapter trained on `start` belongs on, as plain JSON."""
    return {
        "format": LINEAGE_FORMAT,
        "base": {"id": start.config.id, "revision": start.revision, "sha256": start.sha256},
        "adapters": [adapter.sha256 for adapter in start.adapters],
        "dtype": start.dtype,
        "fold_version": FOLD_VERSION,
        "start": start.identity,
    }


def read_adapter(directory: Path) -> Adapter:
    """Find an adapter on disk and hash it.

    Raises:
        FoldError: It is not there, or not whole.
    """
    for name in (_WEIGHTS, _CONFIG):
        if not (directory / name).is_file():
            raise FoldError(f"the adapter {directory} is missing: there is no {name}")
    config = json.loads((directory / _CONFIG).read_text(encoding="utf-8"))
    parts = [file_sha256(directory / _WEIGHTS), _canonical(config)]
    return Adapter(path=directory, sha256=hashlib.sha256(json.dumps(parts).encode()).hexdigest())


def check_lineage(adapter: Adapter, start: ModelRef) -> None:
    """Check that an adapter is whole, the one that was recorded, and was trained on `start`.

    Raises:
        FoldError: It is missing, has changed, has no lineage, or belongs on other weights.
    """
    found = read_adapter(adapter.path)
    if found.sha256 != adapter.sha256:
        raise FoldError(f"the adapter {adapter.path} has changed: its hash is {found.sha256}, not {adapter.sha256}")
    path = adapter.path / _LINEAGE
    if not path.is_file():
        raise FoldError(f"the adapter {adapter.path} has no lineage.json: nothing says on which weights it belongs")
    recorded, expected = json.loads(path.read_text(encoding="utf-8")), lineage(start)
    if recorded["base"]["sha256"] != expected["base"]["sha256"]:
        raise FoldError(
            f"the adapter {adapter.path} belongs on another base: {recorded['base']['id']} "
            f"({recorded['base']['sha256'][:12]}), not {start.config.id} ({start.sha256[:12]})"
        )
    if recorded["adapters"] != expected["adapters"]:
        raise FoldError(
            f"the adapter {adapter.path} belongs on other folded weights: it was trained after "
            f"{len(recorded['adapters'])} adapters, and not after the {len(expected['adapters'])} before it here"
        )


def _canonical(config: dict[str, Any]) -> str:
    config = (
        {key: sorted(value) if key.endswith("_modules") and value else value for key, value in config.items()}
        if not isinstance(config.get("target_modules"), str)
        else config
    )
    return json.dumps(config, indent=2, sort_keys=True) + "\n"
