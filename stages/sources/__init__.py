"""Where rows come from: a file, a Python function, a task of reasoning-gym or a dataset of the hub.

What they mean is `stages.mapping`'s.
"""

import hashlib
import itertools
from pathlib import Path
from typing import Any

from conf.errors import UserError
from conf.schema import DataConfig
from stages.sources.files import READERS, read_file
from stages.sources.functions import PREFIX, read_function, source_files
from stages.sources.gym import PREFIX as GYM_PREFIX
from stages.sources.gym import gym_identity, read_gym
from stages.sources.hub import HUB_ID, read_hub, resolve_revision
from stages.sources.record import Record

__all__ = [
    "GYM_PREFIX",
    "PREFIX",
    "Record",
    "read_source",
    "resolve_revision",
    "source_file",
    "source_files",
    "source_identity",
]


def read_source(config: DataConfig, base_dir: Path) -> list[Record]:
    """All rows of a source, or the first `max_rows`, in their order.

    Args:
        config: The data section; `source` says what to read.
        base_dir: What a relative path and a module of the user's own are relative to.

    Raises:
        UserError: The source cannot be read or has no rows; names the file and the line.
    """
    if config.source.startswith(PREFIX):
        rows = read_function(config.source, config.args, base_dir)
    elif config.source.startswith(GYM_PREFIX):
        rows = read_gym(config.source, config.args)
    elif (path := source_file(config.source, base_dir)) is not None:
        rows = read_file(path, config.source)
    else:
        rows = read_hub(config)
    records = list(itertools.islice(rows, config.max_rows))
    if not records:
        raise UserError(f"{config.source}: has no rows")
    return records


def source_identity(config: DataConfig, base_dir: Path) -> list[Any]:
    """What determines the rows of a source, as plain JSON.

    A file's content; the source of a function and of the modules beside it that it imports; a task's settings and
    library version; a hub commit.

    Raises:
        UserError: The source cannot be found.
    """
    if config.source.startswith(PREFIX):
        hashes = [_sha256(path, config.source) for path in source_files(config.source, base_dir)]
        return [config.source, *hashes, config.args]
    if config.source.startswith(GYM_PREFIX):
        return gym_identity(config.source, config.args)
    if (path := source_file(config.source, base_dir)) is not None:
        return [path.suffix.lower(), _sha256(path, config.source)]
    return [config.source, config.name, config.split, resolve_revision(config)]


def source_file(source: str, base_dir: Path) -> Path | None:
    """The path of a source that is a file, None for one that can only be a hub id.

    Raises:
        UserError: It is neither.
    """
    path = base_dir / Path(source).expanduser()
    if path.suffix.lower() in READERS and not path.is_dir():
        return path
    if not path.exists() and HUB_ID.fullmatch(source):
        return None
    what = "is a directory" if path.is_dir() else "has no known suffix" if path.exists() else "does not exist"
    formats = ", ".join(READERS)
    raise UserError(
        f"{source}: {what}; expected a file ({formats}), a hub dataset id, {PREFIX}module.function or {GYM_PREFIX}task"
    )


def _sha256(path: Path, name: str) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror} (looked for {path.absolute()})") from None
