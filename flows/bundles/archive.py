"""The file that carries a bundle: a tar in zstd of which every byte follows from its manifest.

The manifest is the first member and names all others in their order, with size, mode and hash. Whoever reads a bundle
does not trust what the tar says, but compares it with what has to stand there: a link, a path that leads elsewhere, one
member more or less, or another byte cannot be in it. Nothing is written or unpacked beyond the sizes in the manifest.
Hashes tell what was damaged or mixed up; they are no signature. `tar --zstd -xf` unpacks a bundle, too.
"""

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from conf.errors import UserError
from stages.cache import draft_name, file_sha256
from stages.disk import free_space, size_text

FORMAT = 1
"""Version of the bundle's layout; a bundle of another version is refused."""

MANIFEST = "manifest.json"
_KIND = "ratchet-bundle"
_LARGEST_MANIFEST = 2**26
_CHUNK = 2**20
_END = bytes(2 * tarfile.BLOCKSIZE)
_NAME = re.compile(r"[^\x00-\x1f\x7f\\]+")
_TYPES = {tarfile.SYMTYPE: "a symbolic link", tarfile.LNKTYPE: "a hard link", tarfile.DIRTYPE: "a directory"}


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
    text = _manifest_text({**facts, "kind": _KIND, "format": FORMAT, "members": listed})
    draft = draft_name(path)
    try:
        with _compressed(draft) as stream:
            stream.write(_header(MANIFEST, len(text), False) + text + _padding(len(text)))
            for name, about in listed.items():
                stream.write(_header(name, about["size"], about["executable"]))
                _append(stream, members[name].content)
                stream.write(_padding(about["size"]))
            stream.write(_END)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _append(stream: BinaryIO, content: bytes | Path) -> None:
    if isinstance(content, bytes):
        stream.write(content)
        return
    with content.open("rb") as file:
        while chunk := file.read(_CHUNK):
            stream.write(chunk)


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
                _expect(stream, _header(name, about["size"], about["executable"]), name)
                _extract(stream, about, folder / name, name)
            _expect(stream, _END, None)
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


@contextmanager
def _compressed(path: Path) -> Iterator[BinaryIO]:
    import pyarrow  # has the zstd that Python 3.11 lacks

    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.CompressedOutputStream(file, "zstd") as stream:
        yield stream


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
    if block != _header(MANIFEST, first.size, False):
        raise _Altered(f"the head of {MANIFEST} is another")
    text = stream.read(first.size)
    (folder / MANIFEST).write_bytes(text)
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        raise _Altered(f"{MANIFEST} is not what was written") from None
    if not isinstance(manifest, dict) or manifest.get("kind") != _KIND:
        raise _Foreign(f"its {MANIFEST} is of something else")
    if manifest.get("format") != FORMAT:
        raise _Foreign(f"its format is {manifest.get('format')!r}, and this version reads {FORMAT}")
    if manifest.pop("digest", None) is None or text != _manifest_text(manifest):
        raise _Altered(f"{MANIFEST} is not what was written")
    _check_members(manifest.get("members"))
    _expect(stream, _padding(first.size), MANIFEST)
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
            chunk = stream.read(min(left, _CHUNK))
            if not chunk:
                raise _Altered(f"it ends inside {name!r}")
            hashed.update(chunk)
            file.write(chunk)
            left -= len(chunk)
    if about["executable"]:
        target.chmod(target.stat().st_mode | 0o111)
    if hashed.hexdigest() != about["sha256"]:
        raise _Altered(f"the content of {name!r} is another")
    _expect(stream, _padding(about["size"]), name)


def _manifest_text(manifest: Mapping[str, Any]) -> bytes:
    """The manifest with a hash of itself, as it has to be written."""
    plain = json.dumps(manifest, sort_keys=True, ensure_ascii=False)
    whole = {**manifest, "digest": hashlib.sha256(plain.encode()).hexdigest()}
    return (json.dumps(whole, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def _header(name: str, size: int, executable: bool) -> bytes:
    """What a tar archive says of a plain file without owner and time."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o755 if executable else 0o644
    return info.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)
