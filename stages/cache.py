"""Where converted and made-up base models are kept, so that the work is done once per machine and not once per run.

Light: the standard library, and `filelock` where something is made. Nothing in the cache is precious: whatever is
deleted is made again, byte for byte.
"""

import contextlib
import glob
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path


def cache_dir() -> Path:
    """`$RATCHET_CACHE_DIR`, else `$XDG_CACHE_HOME/ratchet`, else `~/.cache/ratchet`."""
    if chosen := os.environ.get("RATCHET_CACHE_DIR"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "ratchet"


def make_once(target: Path, make: Callable[[Path], None], is_whole: Callable[[Path], bool] = Path.is_dir) -> Path:
    """The directory `target`; `make` fills it when it is not there yet, or no longer whole.

    Two processes that need the same directory make it once: the second waits. A directory appears under its final
    name only when it is complete.

    Args:
        target: The directory; its name is unique to its content.
        make: Writes the content into an empty directory.
        is_whole: Whether a directory can be used as it is.
    """
    from filelock import FileLock

    if is_whole(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{target.name}.lock")):
        if not is_whole(target):
            _remove_drafts(target)
            draft = draft_name(target)
            draft.mkdir()
            try:
                make(draft)
                shutil.rmtree(target, ignore_errors=True)
                draft.rename(target)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    return target


def _remove_drafts(target: Path) -> None:
    """Remove what a process left that was killed while it made a directory."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, always computed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_sha256(path: Path) -> str:
    """SHA-256 of a file's content, remembered for as long as its path, size, modification time and inode stay."""
    status = path.stat()
    key = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino]
    note = cache_dir() / "digests" / hashlib.sha256(json.dumps(key).encode()).hexdigest()
    try:
        return note.read_text()
    except OSError:
        digest = file_sha256(path)
    with contextlib.suppress(OSError):  # A read-only cache costs time, nothing else.
        write_atomically(note, digest)
    return digest


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that no reader ever sees half of it; when that fails, what was there stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_name(path)
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # A full disk needs the room, a read-only one has no draft.
            draft.unlink()
        raise


def is_free(directory: Path) -> bool:
    """Whether a directory can be written as a new one: it is absent, or empty."""
    return not directory.exists() or (directory.is_dir() and not any(directory.iterdir()))


def draft_name(path: Path) -> Path:
    """A free name beside a path, to write to and then rename; what `tempfile` makes only its owner can read."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")
