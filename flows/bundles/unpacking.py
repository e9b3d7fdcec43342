"""The file that carries a bundle, read: unpacked only as far as it is what its manifest says.

What the tar says is not trusted, but compared with what has to stand there: a link, a path that leads elsewhere, one
member more or less, or another byte cannot be in it. Nothing is written or unpacked beyond the sizes in the manifest.
Hashes tell what was damaged or mixed up; they are no signature.
"""

import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from conf.errors import UserError
from flows.bundles.archive import CHUNK, END, FORMAT, KIND, MANIFEST, can_name, header, manifest_text, padding
from stages.disk import free_space, size_text

_LARGEST_MANIFEST = 2**26
_TYPES = {tarfile.SYMTYPE: "a symbolic link", tarfile.LNKTYPE: "a hard link", tarfile.DIRTYPE: "a directory"}


def unpack_archive(path: Path, folder: Path) -> dict[str, Any]:
    """Unpack a bundle into an empty directory and check every byte of it; returns the manifest.

    What was written before an error is found stays in the directory, which is to be thrown away then.

    Raises:
        UserError: It is no bundle, of another version, damaged, altered, or larger than the room there is.
    """
    try:
        with _decompressed(path) as stream:
            manifest = _read_manifest(stream, folder)
            _check_room(manifest, folder)
            for name, about in manifest["members"].items():
                _expect(stream, header(name, about["size"], about["executable"]), name)
                _extract(stream, about, folder / name, name)
            _expect(stream, END, None)
            if stream.read(1):
                raise _Altered("it goes on after its end")
    except _Foreign as error:
        raise UserError(f"{path}: is no bundle of Ratchet: {error}") from None
    except _Altered as error:
        raise UserError(f"{path}: was damaged or altered: {error}; bundle it again, or copy it again") from None
    return manifest


class _Foreign(Exception):
    """The file is something else."""


class _Altered(Exception):
    """A bundle that is not as it was written."""


class _Stream:
    """Reads exactly as much as it is asked for; what the decompressor makes of a damaged file is one error."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except (OSError, ValueError) as error:
            raise _Altered(str(error).splitlines()[0]) from None


@contextmanager
def _decompressed(path: Path) -> Iterator[_Stream]:
    import pyarrow

    try:
        with path.open("rb") as file:
            begin = file.read(4)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if begin != b"\x28\xb5\x2f\xfd":
        raise _Foreign("it is not compressed by zstd")
    with pyarrow.OSFile(str(path), "rb") as file, pyarrow.CompressedInputStream(file, "zstd") as stream:
        yield _Stream(stream)


def _read_manifest(stream: _Stream, folder: Path) -> dict[str, Any]:
    """The manifest, which vouches for itself, too."""
    block = stream.read(tarfile.BLOCKSIZE)
    try:
        first = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, ValueError):
        raise _Foreign("it does not hold a tar archive") from None
    if first.name != MANIFEST or not first.isreg() or first.size > _LARGEST_MANIFEST:
        raise _Foreign(f"it does not begin with {MANIFEST}")
    if block != header(MANIFEST, first.size, False):
        raise _Altered(f"the head of {MANIFEST} is another")
    text = stream.read(first.size)
    (folder / MANIFEST).write_bytes(text)
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        raise _Altered(f"{MANIFEST} is not what was written") from None
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise _Foreign(f"its {MANIFEST} is of something else")
    if manifest.get("format") != FORMAT:
        raise _Foreign(f"its format is {manifest.get('format')!r}, and this version reads {FORMAT}")
    if manifest.pop("digest", None) is None or text != manifest_text(manifest):
        raise _Altered(f"{MANIFEST} is not what was written")
    _check_members(manifest.get("members"))
    _expect(stream, padding(first.size), MANIFEST)
    return manifest


def _check_members(members: Any) -> None:
    """See that the manifest names plain files below the directory, each once, and says all about them."""
    if not isinstance(members, dict):
        raise _Foreign(f"its {MANIFEST} names no members")
    folders = {str(folder) for name in members for folder in PurePosixPath(name).parents}
    for name, about in members.items():
        parts = name.split("/")
        inside = can_name(name) and str(PurePosixPath(name)) == name and ".." not in parts
        if not inside or name.startswith("/") or parts[0] == MANIFEST or name in folders:
            raise _Altered(f"the path {name!r} leads out of it, or is taken")
        kinds = {key: type(value) for key, value in about.items()} if isinstance(about, dict) else {}
        if kinds != {"sha256": str, "size": int, "executable": bool} or about["size"] < 0:
            raise _Altered(f"{MANIFEST} says nothing of use about {name!r}")


def _check_room(manifest: Mapping[str, Any], folder: Path) -> None:
    needed, free = sum(about["size"] for about in manifest["members"].values()), free_space(folder)
    if needed > free:
        raise UserError(f"{folder.parent}: has {size_text(free)} free, the bundle needs {size_text(needed)}; make room")


def _expect(stream: _Stream, expected: bytes, name: str | None) -> None:
    """Read what has to follow; `name` is what it belongs to, None for the end."""
    found = stream.read(len(expected))
    if found == expected:
        return
    where = f"at {name!r}" if name else "at its end"
    try:
        other = tarfile.TarInfo.frombuf(found[: tarfile.BLOCKSIZE], "utf-8", "replace")
    except (tarfile.HeaderError, ValueError):
        raise _Altered(where) from None
    kind = "" if other.isreg() else f" ({_TYPES.get(other.type, 'no plain file')})"
    raise _Altered(f"{where} stands {other.name!r}{kind}, which its manifest does not describe")


def _extract(stream: _Stream, about: Mapping[str, Any], target: Path, name: str) -> None:
    """Write one member and check it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    hashed, left = hashlib.sha256(), about["size"]
    with target.open("xb") as file:
        while left:
            chunk = stream.read(min(left, CHUNK))
            if not chunk:
                raise _Altered(f"it ends inside {name!r}")
            hashed.update(chunk)
            file.write(chunk)
            left -= len(chunk)
    if about["executable"]:
        target.chmod(target.stat().st_mode | 0o111)
    if hashed.hexdigest() != about["sha256"]:
        raise _Altered(f"the content of {name!r} is another")
    _expect(stream, padding(about["size"]), name)
