"""Results from another machine: checked as a whole, then put into the store, where they count as if made here.

Nothing is seen of an import before all of it is checked; then every entry appears by one rename, those first on which
others stand, and the record of the run last. So an import that is killed leaves whole entries and no record, and the
same command does the rest.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conf.errors import UserError
from flows.bundles.found import FoundResults, Refused
from flows.bundles.unpacking import unpack_archive
from flows.leases import once_each
from flows.store import Entry, Store, write_json
from stages.cache import draft_name
from stages.locks import locked

_DRAFT = ".import"


@dataclass(frozen=True)
class Imported:
    """What an import has done.

    Attributes:
        run: The run that the results are of.
        origin: The machine they come from.
        new: Entries that were not here.
        kept: Entries that were here, too.
        known: Whether the run itself was here before.
        notices: What a person should know.
    """

    run: str
    origin: str
    new: list[str]
    kept: list[str]
    known: bool
    notices: list[str]


def import_archive(path: Path, runs_dir: Path, say: Callable[[str], None]) -> Imported:
    """Take the results of a bundle into the store.

    Args:
        path: The bundle.
        runs_dir: Where runs live here.
        say: Told while another process makes what is to be imported.

    Raises:
        UserError: The bundle is foreign, damaged or altered, or contradicts what is here. Nothing is imported then.
    """
    store = Store(runs_dir)
    store.prepare()
    with locked(store.root / f"{_DRAFT}.lock", lambda: None), _draft(store.root) as draft:
        manifest = unpack_archive(path, draft)
        try:
            found = FoundResults(draft, manifest, store)
        except Refused as error:
            raise UserError(f"{path}: {error}") from None
        notices = found.notices()
        new = [entry.id for entry in found.entries if _take(store, entry, say)]
        known = _take_record(runs_dir, found.record)
    return Imported(
        run=found.record["id"],
        origin=found.record["imported"]["host"],
        new=new,
        kept=[entry.id for entry in found.entries if entry.id not in new],
        known=known,
        notices=notices,
    )


@contextmanager
def _draft(root: Path) -> Iterator[Path]:
    """A directory of our own in the store; those that a killed import left are removed."""
    for left in root.glob(f".{_DRAFT}.*"):
        shutil.rmtree(left, ignore_errors=True)
    draft = draft_name(root / _DRAFT)
    draft.mkdir()
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _take(store: Store, entry: Entry, say: Callable[[str], None]) -> bool:
    """Move an entry into the store, unless it is there; returns whether it was moved."""
    ours = Entry(store.root / entry.id)
    on_wait = once_each(lambda holder: say(f"waiting for {holder}, which is making {entry.id}"))
    with store.locked(ours, "an import", on_wait):
        if ours.result() is not None:
            return False
        if ours.path.exists():  # unfinished or damaged
            ours.discard()
        entry.path.rename(ours.path)
        return True


def _take_record(runs_dir: Path, record: Mapping[str, Any]) -> bool:
    """Write down the run, unless it is known here; returns whether it is."""
    path = runs_dir / "pipelines" / record["id"] / "pipeline.json"
    if path.exists():
        return True
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(path, {**record, "imported": {**record["imported"], "time": now}})
    return False
