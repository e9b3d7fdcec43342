"""A disk that is full or may not be written: what Python and the libraries raise then, as one clear message.

Who wrote says little: a full disk is an OSError without a path to Python, a RuntimeError about positions to torch, an
error of its own to safetensors, and a database error to MLflow.
"""

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from conf.errors import DiskError, UserError
from stages.cache import cache_dir, draft_name

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EROFS, errno.EACCES)
_SAID = (
    (re.compile(r"\(os error (\d+)\)"), None),  # safetensors
    (re.compile(r"inline_container\.cc.*open file failed with strerror: Read-only"), errno.EROFS),  # torch.save
    (re.compile(r"inline_container\.cc.*open file failed with strerror: Permission"), errno.EACCES),
    (re.compile(r"inline_container\.cc.*(unexpected pos|failed writing)|iostream error"), errno.ENOSPC),
    (re.compile(r"database or disk is full"), errno.ENOSPC),  # SQLite, through SQLAlchemy and MLflow
    (re.compile(r"attempt to write a readonly database"), errno.EROFS),
    (re.compile(r"\(sqlite3\.OperationalError\) unable to open database file"), errno.EACCES),
    (re.compile(r"\(sqlite3\.OperationalError\) disk I/O error"), errno.EIO),
)
"""What the libraries say in words, and the error number it stands for (None: it is in the words)."""

GIVE_ROOM = "make room, or give another runs_dir"
"""What to do where a run cannot even begin."""


def disk_error(error: BaseException, folder: Path) -> DiskError | None:
    """What an error says about a disk, in one message; None when it is about anything else.

    Args:
        error: As it was raised by whoever wrote.
        folder: Where writing was going on, for errors that name no path.
    """
    if isinstance(error, DiskError):
        return error
    number = _number(error)
    if number is None:
        return None
    path = _named(error)
    if number in _FULL:
        path = path or _fullest([folder, cache_dir()])
        return DiskError(f"{path}: {os.strerror(number)} ({size_text(free_space(path))} free)", full=True)
    return DiskError(f"{path or folder}: {os.strerror(number)}", full=False)


@contextlib.contextmanager
def clear_disk_errors(folder: Path) -> Iterator[None]:
    """Turn every error that is about a disk into a `DiskError`.

    Raises:
        DiskError: A disk is full, or may not be written.
    """
    try:
        yield
    except Exception as error:
        found = disk_error(error, folder)
        if found is None or found is error:
            raise
        raise found from error


def check_writable(folder: Path, setting: str) -> None:
    """Make a directory and try to write there.

    Raises:
        UserError: It cannot be done; names the setting, the directory and the reason.
    """
    probe = draft_name(folder / "writable")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"{setting}: cannot write to {folder} ({error.strerror}); give a directory that can be written"
        ) from error


def free_space(path: Path) -> int:
    """Bytes that can still be written where a path is, or would be."""
    existing = next(folder for folder in [path, *path.absolute().parents] if folder.exists())
    return shutil.disk_usage(existing).free


def size_text(size: float) -> str:
    """A number of bytes as a person reads it: `320 KiB`, `1.4 MiB`, `12 MiB`."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if size >= unit:
            return f"{size / unit:.{1 if size < 10 * unit else 0}f} {name}"
    return f"{size / 2**10:.0f} KiB"


def _number(error: BaseException) -> int | None:
    """The error number, if it is one about a disk."""
    if isinstance(error, UserError):  # explains itself, whatever it came from
        return None
    if isinstance(error, OSError):
        about_disk = error.errno in _FULL or (error.errno in _REFUSED and _named(error) is not None)
        return error.errno if about_disk else None
    for pattern, number in _SAID:
        if found := pattern.search(str(error)):
            said = number or int(found[1])
            return said if said in (*_FULL, *_REFUSED, errno.EIO) else None
    return None


def _named(error: BaseException) -> Path | None:
    """The path that an error names: the target of two, and of a draft the directory it is in."""
    names = [getattr(error, name, None) for name in ("filename2", "filename")]
    path = next((Path(name) for name in names if isinstance(name, str)), None)
    return path.parent if path and path.name.startswith(".") else path


def _fullest(folders: list[Path]) -> Path:
    """Where room lacks, of all places that are written to."""
    with contextlib.suppress(OSError):  # Where nothing can be written, not even a temporary directory is found.
        folders = [*folders, Path(tempfile.gettempdir())]
    return min(folders, key=free_space)
