"""Which model exactly: a model section becomes a reference with a resolved revision and a hash, without loading it.

Light (no torch), because `plan` names every model of a pipeline in this way.
"""

import hashlib
import json
from pathlib import Path

from conf.errors import UserError
from conf.schema import ModelConfig
from stages import embedded, hub, tiny
from stages.cache import cached_sha256
from stages.contract import ModelRef

MADE = {embedded.ID: embedded, tiny.ID: tiny}
"""Models that are made in Ratchet's own cache on first use."""

_PICKLED = ("*.bin", "*.pt", "*.pth")
_IDENTITY_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.py")


def resolve_model(config: ModelConfig, dtype: str) -> ModelRef:
    """The reference of a base model.

    Args:
        config: The model section.
        dtype: Number type of the weights, resolved (`Hardware.dtype`).

    Raises:
        UserError: The model cannot be found, reached or used; says what would be right.
    """
    revision = None
    if config.id == embedded.ID:
        sha256 = embedded.identity()
    elif config.id == tiny.ID:
        sha256 = tiny.identity()
    elif config.id.startswith(("embedded:", "tiny:")):
        raise UserError(f"model.id: there is no {config.id!r}; there are {embedded.ID!r} and {tiny.ID!r}")
    elif is_local(config.id):
        sha256 = directory_identity(Path(config.id).expanduser())
    else:
        revision, sha256 = hub.resolve(config)
    return ModelRef(config=config, revision=revision, sha256=sha256, dtype=dtype)


def model_directory(ref: ModelRef) -> Path:
    """The directory on this machine from which the base model loads; converts or downloads it on first use.

    Raises:
        UserError: The model cannot be found, reached or used.
    """
    config = ref.config
    if config.id == embedded.ID:
        return embedded.directory()
    if config.id == tiny.ID:
        return tiny.directory()
    if is_local(config.id):
        return Path(config.id).expanduser()
    return hub.directory(config, ref.revision or "main")


def read_template(template: str) -> str:
    """A chat template is text when it has a Jinja brace, else the path of a file.

    Raises:
        UserError: There is no such file.
    """
    if "{" in template:
        return template
    path = Path(template).expanduser()
    if not path.is_file():
        raise UserError(f"model.chat_template: {template!r} is neither a Jinja template nor a file")
    return path.read_text(encoding="utf-8")


def present_directory(ref: ModelRef) -> Path | None:
    """The model's directory if it is there already, else None: nothing is made or downloaded."""
    if maker := MADE.get(ref.config.id):
        return maker.location() if maker.location().is_dir() else None
    if is_local(ref.config.id):
        return Path(ref.config.id).expanduser()
    return hub.downloaded(ref.config.id, ref.revision)


def is_local(model_id: str) -> bool:
    """Whether a model id means a directory: it is one, or it is written like one."""
    return model_id.startswith(("/", "./", "../", "~")) or Path(model_id).is_dir()


def directory_identity(directory: Path) -> str:
    """Hash over the weights, model configuration and tokenizer files of a local model.

    Raises:
        UserError: There is no such directory, or it holds no configuration or no safetensors weights.
    """
    if not directory.is_dir():
        raise UserError(f"model.id: there is no directory {directory}")
    if not (directory / "config.json").is_file():
        raise UserError(f"model.id: {directory} is no model directory: it has no config.json")
    if not list(directory.glob("*.safetensors")):
        pickled = any(list(directory.glob(pattern)) for pattern in _PICKLED)
        found = "only pickled weights, which are not loaded; convert them to safetensors" if pickled else "no weights"
        raise UserError(f"model.id: {directory} has {found} (looked for *.safetensors)")
    names = sorted({path.name for pattern in _IDENTITY_FILES for path in directory.glob(pattern)})
    digests = [(name, cached_sha256(directory / name)) for name in names]
    return hashlib.sha256(json.dumps(["directory", digests]).encode()).hexdigest()
