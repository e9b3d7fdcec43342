"""Models from the Hugging Face hub: a name becomes a commit, a commit becomes a directory, safetensors only.

`huggingface_hub` is imported where it is used: this module stays light.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from conf.errors import DiskError, UnreachableError, UserError
from conf.schema import ModelConfig
from stages.disk import clear_disk_errors

_FILES = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.py", "*.tiktoken"]
_COMMIT = re.compile(r"[0-9a-f]{40}")
_OFFER = "or use the embedded model: model=smollm2-135m"


def resolve(config: ModelConfig) -> tuple[str, str]:
    """The commit of a hub model and the identity that follows from it (a commit is a hash of the content).

    Asks the hub; when it cannot be reached, what was downloaded earlier decides.

    Raises:
        UserError: The model does not exist, may not be read, has no safetensors, or the hub cannot be reached.
    """
    commit = _cached_commit(config) if _COMMIT.fullmatch(config.revision or "") else None
    commit = commit or _remote_commit(config)
    return commit, hashlib.sha256(f"hub {config.id} {commit}".encode()).hexdigest()


def directory(config: ModelConfig, commit: str) -> Path:
    """The model's files on this machine, downloaded when they are not there yet.

    Raises:
        UserError: The hub cannot be reached, or refuses.
        DiskError: There is no room for them.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE

    if folder := downloaded(config.id, commit):
        return folder
    try:
        with clear_disk_errors(Path(HF_HUB_CACHE)):
            return Path(snapshot_download(config.id, revision=commit, allow_patterns=_FILES))
    except DiskError:
        raise
    except Exception as error:
        raise _explain(config, error) from error


def _remote_commit(config: ModelConfig) -> str:
    from huggingface_hub import HfApi

    try:
        info = HfApi().model_info(config.id, revision=config.revision, timeout=20)
    except Exception as error:
        if (commit := _cached_commit(config)) and not _is_answer(error):
            return commit
        raise _explain(config, error) from error
    names = [file.rfilename for file in info.siblings or []]
    if not any(name.endswith(".safetensors") for name in names):
        raise UserError(f"model.id: {config.id} has no safetensors weights; pickled weights are not loaded")
    return str(info.sha)


def _cached_commit(config: ModelConfig) -> str | None:
    """The commit that an earlier download left on this machine."""
    folder = downloaded(config.id, config.revision)
    return folder.name if folder else None


def downloaded(model_id: str, revision: str | None) -> Path | None:
    """An earlier download, if it is whole; asks nobody."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(model_id, revision=revision, local_files_only=True))
    except Exception:
        return None
    weights = {"model.safetensors"}
    if (index := folder / "model.safetensors.index.json").is_file():
        weights = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    needed = [*weights, "config.json", "tokenizer_config.json"]
    return folder if all((folder / name).is_file() for name in needed) else None


def _is_answer(error: Exception) -> bool:
    """Whether the hub answered (and refused), rather than could not be reached."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    return isinstance(error, RepositoryNotFoundError | RevisionNotFoundError)


def _explain(config: ModelConfig, error: Exception) -> UserError:
    from huggingface_hub import errors

    cases: list[tuple[Any, str]] = [
        (errors.GatedRepoError, "is gated: accept its terms on the hub and set HF_TOKEN"),
        (errors.RevisionNotFoundError, f"has no revision {config.revision!r}"),
        (errors.RepositoryNotFoundError, "is neither on the hub (or needs a HF_TOKEN) nor a directory here"),
        (errors.HFValidationError, "is neither a hub id (owner/name) nor a directory here"),
    ]
    for kind, words in cases:
        if isinstance(error, kind):
            return UserError(f"model.id: {config.id} {words}; {_OFFER}")
    return UnreachableError(f"model.id: {config.id} cannot be fetched, the model hub cannot be reached; {_OFFER}")
