"""The file that carries a bundle: a tar in zstd of which every byte follows from its manifest.

The manifest is the first member and names all others in their order, with size, mode and hash. Such a file is read by
`flows.bundles.unpacking`; `tar --zstd -xf` unpacks it, too.
"""

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from stages.cache import draft_name, file_sha256

FORMAT = 1
"""Version of the bundle's layout; a bundle of another version is refused."""

MANIFEST = "manifest.json"
KIND = "ratchet-bundle"
CHUNK = 2**20
"""Bytes that are read or written at once."""

END = bytes(2 * tarfile.BLOCKSIZE)
"""What a tar archive ends with."""

_NAME = re.compile(r"[^\x00-\x1f\x7f\\]+")


@dataclass(frozen=True)
class Member:
    """A file of a bundle: its content, or the path of a file that has it, and whether it is a program."""

    content: bytes | Path
    executable: bool = False

    @property
    def sha256(self) -> str:
        """Of the content."""
        is_file = isinstance(self.content, Path)
        return file_sha256(self.content) if is_file else hashlib.sha256(self.content).hexdigest()  # type: ignore

    @property
    def size(self) -> int:
        """In bytes."""
        return self.content.stat().st_size if isinstance(self.content, Path) else len(self.content)


def can_name(name: str) -> bool:
    """Whether a member may be called so: UTF-8 without control characters and backslashes."""
    try:
        return bool(name.encode() and _NAME.fullmatch(name))
    except UnicodeEncodeError:
        return False


def write_archive(path: Path, facts: Mapping[str, Any], members: Mapping[str, Member]) -> None:
    """Write a bundle; the same members and facts give the same bytes.

    Args:
        path: The file, which appears when it is complete.
        facts: What else the manifest says, as plain JSON.
        members: Files by their relative path.
    """
    listed: dict[str, dict[str, Any]] = {
        name: {"sha256": members[name].sha256, "size": members[name].size, "executable": members[name].executable}
        for name in sorted(members)
    }
    text = manifest_text({**facts, "kind": KIND, "format": FORMAT, "members": listed})
    draft = draft_name(path)
    try:
        with _compressed(draft) as stream:
            stream.write(header(MANIFEST, len(text), False) + text + padding(len(text)))
            for name, about in listed.items():
                stream.write(header(name, about["size"], about["executable"]))
                _append(stream, members[name].content)
                stream.write(padding(about["size"]))
            stream.write(END)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _append(stream: BinaryIO, content: bytes | Path) -> None:
    if isinstance(content, bytes):
        stream.write(content)
        return
    with content.open("rb") as file:
        while chunk := file.read(CHUNK):
            stream.write(chunk)


@contextmanager
def _compressed(path: Path) -> Iterator[BinaryIO]:
    import pyarrow  # has the zstd that Python 3.11 lacks

    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.CompressedOutputStream(file, "zstd") as stream:
        yield stream


def manifest_text(manifest: Mapping[str, Any]) -> bytes:
    """The manifest with a hash of itself, as it has to be written."""
    plain = json.dumps(manifest, sort_keys=True, ensure_ascii=False)
    whole = {**manifest, "digest": hashlib.sha256(plain.encode()).hexdigest()}
    return (json.dumps(whole, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def header(name: str, size: int, executable: bool) -> bytes:
    """What a tar archive says of a plain file without owner and time."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o755 if executable else 0o644
    return info.tobuf(tarfile.PAX_FORMAT)


def padding(size: int) -> bytes:
    """What follows a content of so many bytes in a tar archive."""
    return bytes(-size % tarfile.BLOCKSIZE)
