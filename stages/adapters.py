"""Adapters on disk, and the lineage that says on which weights each of them belongs.

peft's own `base_model_name_or_path` cannot name folded weights, and loading a second-stage adapter on the plain base
is silent and wrong. So `lineage.json` names the exact start, and peft's field gets a name that nothing loads.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from peft import PeftModel

from conf.errors import UserError
from stages.cache import file_sha256, write_atomically
from stages.contract import FOLD_VERSION, Adapter, ModelRef
from stages.identity import is_local

LINEAGE_FORMAT = 1
WEIGHTS_FILE, CONFIG_FILE, LINEAGE_FILE = "adapter_model.safetensors", "adapter_config.json", "lineage.json"

_PLAIN = {
    "peft_type": "LORA",
    "bias": "none",
    "lora_bias": False,
    "use_dora": False,
    "use_qalora": False,
    "modules_to_save": None,
    "trainable_token_indices": None,
    "target_parameters": None,
    "layer_replication": None,
    "alora_invocation_tokens": None,
    "arrow_config": None,
    "kasa_config": None,
    "monteclora_config": None,
    "use_bdlora": None,
    "velora_config": None,
}
"""What the fold understands: LoRA whose whole effect is B @ A, scaled, added to a weight."""


class FoldError(UserError):
    """Adapters and base do not make a model that can be trusted; the message says which of the checks failed."""


def save_adapter(
    model: PeftModel, start: ModelRef, directory: Path, weights: Mapping[str, Any] | None = None
) -> Adapter:
    """Write a trained adapter and its lineage.

    The same adapter gives the same bytes: peft writes sets in an order that changes from process to process.

    Args:
        model: The trained model; its adapter `default` (or its only one) is written.
        start: The folded model on which it was trained.
        directory: Where to write; made when absent.
        weights: The trained weights, where the model has only a part of them.
    """
    name = "default" if "default" in model.peft_config else model.active_adapter
    # "auto" would ask the hub for the base model's vocabulary size.
    model.save_pretrained(directory, selected_adapters=[name], save_embedding_layers=False, state_dict=weights)
    if name != "default":
        for file in (directory / name).iterdir():
            file.replace(directory / file.name)
        shutil.rmtree(directory / name)
    (directory / "README.md").unlink(missing_ok=True)
    config = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = _base_name(start)
    write_atomically(directory / CONFIG_FILE, _canonical(config))
    write_atomically(directory / LINEAGE_FILE, json.dumps(lineage(start), indent=2) + "\n")
    shutil.copymode(directory / LINEAGE_FILE, directory / WEIGHTS_FILE)  # Written for its owner only.
    return read_adapter(directory)


def _base_name(start: ModelRef) -> str:
    """What peft is to load; nothing for folded weights, nor for a directory, whose path means nothing elsewhere."""
    if start.adapters:
        return f"ratchet-folded:{start.identity}"
    return f"ratchet-base:{start.sha256}" if is_local(start.config.id) else start.config.id


def lineage(start: ModelRef) -> dict[str, Any]:
    """What an adapter trained on `start` belongs on, as plain JSON; of a directory only its name."""
    name = Path(start.config.id).name if is_local(start.config.id) else start.config.id
    return {
        "format": LINEAGE_FORMAT,
        "base": {"id": name, "revision": start.revision, "sha256": start.sha256},
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
    for name in (WEIGHTS_FILE, CONFIG_FILE):
        if not (directory / name).is_file():
            raise FoldError(f"the adapter {directory} is missing: there is no {name}")
    config = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    parts = [file_sha256(directory / WEIGHTS_FILE), _canonical(config)]
    return Adapter(path=directory, sha256=hashlib.sha256(json.dumps(parts).encode()).hexdigest())


def check_lineage(adapter: Adapter, start: ModelRef) -> None:
    """Check that an adapter is whole, the one that was recorded, and was trained on `start`.

    Raises:
        FoldError: It is missing, has changed, has no lineage, or belongs on other weights.
    """
    found = read_adapter(adapter.path)
    if found.sha256 != adapter.sha256:
        raise FoldError(f"the adapter {adapter.path} has changed: its hash is {found.sha256}, not {adapter.sha256}")
    path = adapter.path / LINEAGE_FILE
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


def check_chain(ref: ModelRef) -> None:
    """Check every adapter of a model against what comes before it.

    Raises:
        FoldError: One is missing, has changed or belongs on other weights.
    """
    for count, adapter in enumerate(ref.adapters):
        check_lineage(adapter, replace(ref, adapters=ref.adapters[:count]))


def check_foldable(adapter: Adapter) -> None:
    """Check that an adapter is plain LoRA.

    Raises:
        FoldError: It has parts that do not fold (DoRA, trained biases, fully trained modules, ...); names them.
    """
    config = json.loads((adapter.path / CONFIG_FILE).read_text(encoding="utf-8"))
    for key, plain in _PLAIN.items():
        value = config.get(key, plain)
        if value != plain and (value or plain):
            raise FoldError(f"the adapter {adapter.path} cannot be folded: {key} is {value!r}; only plain LoRA can")


def _canonical(config: dict[str, Any]) -> str:
    """JSON that does not depend on the order of sets, which peft writes as it finds it."""
    ordered = {
        key: sorted(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else value
        for key, value in config.items()
    }
    return json.dumps(ordered, indent=2, sort_keys=True) + "\n"
