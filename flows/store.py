"""The store: one directory per finished stage, found by fingerprint, trusted only as far as its hashes hold.

`result.json` is written last and atomically: its existence means that the stage is done. It lists every file it vouches
for with a hash; an entry whose files are gone or changed is treated as if it had never been made.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import UserError
from flows.fingerprint import digest
from flows.progress_log import read_progress
from stages.cache import file_sha256, write_atomically
from stages.contract import StageResult
from stages.disk import GIVE_ROOM, check_writable, disk_error
from stages.handover import read_model, write_model
from stages.locks import locked

_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, UserError)
"""Whatever the content of a damaged file leads to."""

FORMAT = 1
"""Version of the store's layout; a store of another version is refused."""


_UNFINISHED = ("checkpoints", "replies.jsonl")
"""Where an unfinished stage stands; of no use once it is done."""

_CONTINUED = (*_UNFINISHED, "progress.jsonl", "log.txt", "tracking.json")
"""What the next attempt at a stage goes on with: where it stood, and what was told of it."""


@dataclass(frozen=True)
class Entry:
    """One stage's directory in the store."""

    path: Path

    @property
    def id(self) -> str:
        """`<stage>-<fingerprint>`."""
        return self.path.name

    def result(self) -> StageResult | None:
        """The finished result, or None when there is none or when a file it vouches for is missing or changed."""
        try:
            return self._read_result()
        except (OSError, *_DAMAGE):
            return None

    def _read_result(self) -> StageResult | None:
        saved = self._vouched()
        root = self.path.parent
        if self._changed(saved):
            return None
        return StageResult(
            model=read_model(saved["model"], root),
            metrics=saved["metrics"],
            artifacts={name: self.path / path for name, path in saved["artifacts"].items()},
            receipt=saved["receipt"],
            verdict=saved["verdict"],
            report=saved["report"],
        )

    def damage(self) -> str | None:
        """Why an entry is of no use, finished or not, e.g. `samples.jsonl is missing`; None for a good one.

        Raises:
            OSError: A file cannot be read, which does not mean that it is damaged.
        """
        finished = (self.path / "result.json").exists()
        try:
            if not finished:
                self.progress()  # what the next attempt goes on with
                return None
            saved = self._vouched()
            read_model(saved["model"], self.path.parent)
            bad = self._changed(saved)
        except _DAMAGE:
            return f"{'result.json' if finished else 'progress.jsonl'} is damaged"
        return bad and f"{bad} is {'damaged' if (self.path / bad).exists() else 'missing'}"

    def _vouched(self) -> dict[str, Any]:
        """What `result.json` says; it vouches for itself, too."""
        saved: dict[str, Any] = json.loads((self.path / "result.json").read_text(encoding="utf-8"))
        if saved.pop("digest") != digest(saved):
            raise ValueError("result.json has changed")
        return saved

    def _changed(self, saved: Mapping[str, Any]) -> str | None:
        """The first file that is not as the result says."""
        files: Mapping[str, str] = saved["files"]
        return next((name for name, sha256 in files.items() if not _unchanged(self.path / name, sha256)), None)

    def write_result(self, result: StageResult, seconds: float) -> None:
        """Vouch for the entry's files and mark it as done."""
        root = self.path.parent
        own = [adapter.path for adapter in result.model.adapters if adapter.path.parent == self.path]
        beside = [self.path / name for name in _VOUCHED_FOR]
        files = [file for path in [*result.artifacts.values(), *own, *beside] for file in _files(path)]
        values = {
            "model": write_model(result.model, root),
            "metrics": dict(result.metrics),
            "artifacts": {name: str(path.relative_to(self.path)) for name, path in result.artifacts.items()},
            "receipt": result.receipt,
            "verdict": result.verdict,
            "report": result.report,
            "seconds": round(seconds, 3),
            "files": {str(path.relative_to(self.path)): file_sha256(path) for path in files},
        }
        write_json(self.path / "result.json", {**values, "digest": digest(values)})
        for name in _UNFINISHED:
            _remove(self.path / name)

    def saved(self, name: str) -> Any:
        """The mapping in one of the entry's JSON files, or None when it is not there or damaged."""
        try:
            value = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def progress(self) -> list[dict[str, float]]:
        """The rows logged so far, one per optimiser step.

        Raises:
            UserError: A row is damaged; names its line.
        """
        return read_progress(self.path / "progress.jsonl")

    def clear(self) -> None:
        """Remove what an earlier attempt left, but for what the next one goes on with."""
        for path in self.path.iterdir():
            if path.name not in _CONTINUED:
                _remove(path)

    def discard(self) -> None:
        """Remove everything, as if the stage had never been begun."""
        shutil.rmtree(self.path)


class Store:
    """All entries below one runs directory, and beside them the scores that evaluations share."""

    def __init__(self, runs_dir: Path) -> None:
        self.root = runs_dir / "store"
        self.scores = self.root / "scores"

    def prepare(self) -> None:
        """Make the store's directory.

        Raises:
            UserError: It cannot be made or written, or has another format.
        """
        version = self.root / "FORMAT"
        for folder in (self.root, self.root.parent):
            check_writable(folder, "runs_dir")
        try:
            if not version.exists():
                write_atomically(version, f"{FORMAT}\n")
            found = version.read_bytes().strip()
        except OSError as error:
            raise UserError(f"runs_dir: {disk_error(error, self.root) or error}; {GIVE_ROOM}") from error
        if found != str(FORMAT).encode():
            raise UserError(f"{self.root}: was written by another version of Ratchet; choose another runs_dir")

    def entry(self, stage: str, fingerprint: str) -> Entry:
        """The entry of a stage with this fingerprint, whether it exists or not."""
        return Entry(self.root / f"{stage}-{fingerprint}")

    def find(self, prefix: str) -> list[Entry]:
        """Finished entries whose id starts with a prefix; none for an empty one."""
        paths = sorted(self.root.glob("*/result.json")) if prefix else []
        return [Entry(path.parent) for path in paths if path.parent.name.startswith(prefix)]

    @contextmanager
    def locked(self, entry: Entry, holder: str, on_wait: Callable[[str], None]) -> Iterator[None]:
        """Hold the entry against other processes; a lock whose holder died is free.

        Args:
            entry: What to hold.
            holder: Who holds it; shown to those who wait for it.
            on_wait: Called with the present holder every half second for as long as another process holds it; it ends
                the wait by raising.
        """
        note = self.root / f".{entry.id}.holder"
        unknown = 0

        def tell() -> None:
            nonlocal unknown
            found = _read_note(note)
            unknown = 0 if found else unknown + 1
            if unknown != 1:  # whoever has just got it, or is letting go of it, is known at the next look
                on_wait(found or "another process")

        with locked(self.root / f".{entry.id}.lock", tell):
            try:
                write_atomically(note, holder)
                yield
            finally:
                note.unlink(missing_ok=True)


def _read_note(path: Path) -> str | None:
    """Who holds a lock; it is only for people to read, and may not be there yet."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that no reader ever sees half of it."""
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


_VOUCHED_FOR = ("config.yaml", "inputs.json", "progress.jsonl", "receipt.json", "rewards")
"""What an entry has beside its adapter and artifacts that must stay as the stage left it."""


def _files(path: Path) -> list[Path]:
    """A file, or the files of a folder; none when there is nothing."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def _unchanged(path: Path, sha256: str) -> bool:
    return path.is_file() and file_sha256(path) == sha256
