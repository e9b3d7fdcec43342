"""Which model exactly: a model section becomes a reference with a resolved revision and a hash, without loading it.

Light (no torch), because `plan` names every model of a pipeline in this way.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from conf.errors import UserError
from conf.schema import ModelConfig
from conf.textfile import read_text
from stages import embedded, hub, tiny
from stages.cache import cached_sha256
from stages.contract import ModelRef

MADE = {embedded.ID: embedded, tiny.ID: tiny}
"""Models that are made in Ratchet's own cache on first use."""

_PICKLED = ("*.bin", "*.pt", "*.pth")
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "*.model", "vocab.*", "*.tiktoken")
_CONVERT = "AutoModelForCausalLM.from_pretrained({0!r}).save_pretrained({1!r}), with transformers, writes safetensors"
_INDEX = "model.safetensors.index.json"
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
    return read_text(path, f"model.chat_template: {template}")


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
        UserError: There is no such directory, or it lacks configuration, tokenizer or whole safetensors weights.
    """
    if not directory.is_dir():
        raise UserError(f"model.id: there is no directory {directory}; give one with a model, or a hub id (owner/name)")
    if not (directory / "config.json").is_file():
        raise UserError(
            f"model.id: {directory} is no model directory: it has no config.json (beside it belong a tokenizer and "
            "*.safetensors)"
        )
    if not any(list(directory.glob(pattern)) for pattern in _TOKENIZERS):
        raise UserError(
            f"model.id: {directory} has no tokenizer (looked for {', '.join(_TOKENIZERS)}); copy its files there"
        )
    _check_weights(directory)
    digests = [(path.name, cached_sha256(path)) for path in _matching(directory, _IDENTITY_FILES)]
    return hashlib.sha256(json.dumps(["directory", digests]).encode()).hexdigest()


def model_files(directory: Path) -> list[Path]:
    """The files of a local model that are loaded or count for its identity, sorted."""
    return _matching(directory, (*_IDENTITY_FILES, *_TOKENIZERS))


def _matching(directory: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in directory.glob(pattern)})


def _check_weights(directory: Path) -> None:
    """See that every safetensors file is whole, by its header, and that none is missing.

    Raises:
        UserError: Names the file.
    """
    files = sorted(directory.glob("*.safetensors"))
    if not files and any(list(directory.glob(pattern)) for pattern in _PICKLED):
        convert = _CONVERT.format(str(directory), f"{directory}-safetensors")
        raise UserError(
            f"model.id: {directory} has only pickled weights, which are not loaded; convert them: {convert}"
        )
    if not files:
        raise UserError(f"model.id: {directory} has no weights (looked for *.safetensors)")
    for name in _shards(directory) - {file.name for file in files}:
        raise UserError(f"model.id: {directory} lacks {name}, which {_INDEX} names; download it again")
    for file in files:
        _check_header(file)


def _shards(directory: Path) -> set[str]:
    """The files that the index of sharded weights names."""
    path = directory / _INDEX
    if not path.is_file():
        return set()
    try:
        return set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, LookupError, AttributeError, TypeError):
        raise UserError(f"model.id: {path} is not an index of weights; download it again") from None


def _check_header(file: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        with file.open("rb") as opened:
            pointer = opened.read(20).startswith(b"version https://git-")
        hint = "it is a pointer of git-lfs: git lfs pull" if pointer else "is it whole? download it again"
        raise UserError(f"model.id: {file} is no safetensors file ({error}); {hint}") from None
