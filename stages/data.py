"""From a data section to prepared rows: read (`stages.sources`), map (`stages.mapping`), split (`stages.splits`).

Light to import: no torch, and `datasets` only when a hub id is read.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from conf.errors import UserError
from conf.loader import dump
from conf.schema import DataConfig, Split
from stages.cache import file_sha256, make_once, write_atomically
from stages.mapping import map_rows
from stages.rows import Row, write_rows
from stages.sources import read_source, source_identity
from stages.splits import normalised_prompt, split_of

_SOURCE_FIELDS = ("source", "args", "name", "split", "revision")
_NOT_IN_IDENTITY = (*_SOURCE_FIELDS, "held_out")
_HASHES = "hashes.json"
_CODE = ("data.py", "mapping.py", "rows.py", "splits.py", "sources/*.py")


def prepare_data(config: DataConfig, held_out: float, out_dir: Path, base_dir: Path) -> dict[str, Path]:
    """Write the rows of a source as `train.jsonl`, `select.jsonl` and `gate.jsonl`; returns the paths by part.

    Rows keep the order of the source.

    Args:
        config: The source and its mapping.
        held_out: Share of the prompts nobody trains on; half of it is `select`, half `gate`. 1 leaves no row to train
            on.
        out_dir: Where the files go; made when missing.
        base_dir: What relative paths are relative to.

    Raises:
        UserError: The source or its mapping is wrong, or a part would be empty.
    """
    parts = split_rows(read_rows_of(config, base_dir), held_out, config.source)
    out_dir.mkdir(parents=True, exist_ok=True)
    return {part.name: write_rows(out_dir / f"{part.name}.jsonl", rows) for part, rows in parts.items()}


def read_rows_of(config: DataConfig, base_dir: Path) -> list[Row]:
    """All rows of a source, mapped, in its order.

    Raises:
        UserError: The source or its mapping is wrong.
    """
    return map_rows(read_source(config, base_dir), config)


def prepare_once(config: DataConfig, held_out: float, folder: Path, base_dir: Path) -> dict[str, Path]:
    """The same in a folder of its own, unless the rows are there already and whole; one process at a time does it.

    Raises:
        UserError: As `prepare_data`.
    """

    def make(draft: Path) -> None:
        files = prepare_data(config, held_out, draft, base_dir)
        hashes = {path.name: file_sha256(path) for path in files.values()}
        write_atomically(draft / _HASHES, json.dumps(hashes, indent=1) + "\n")

    make_once(folder, make, _is_whole)
    return {part.name: folder / f"{part.name}.jsonl" for part in Split}


def _is_whole(folder: Path) -> bool:
    """Whether prepared rows are as they were written."""
    names = [f"{part.name}.jsonl" for part in Split]
    try:
        hashes: object = json.loads((folder / _HASHES).read_text(encoding="utf-8"))
        return hashes == {name: file_sha256(folder / name) for name in names}
    except (OSError, ValueError):
        return False


def split_rows(rows: Sequence[Row], held_out: float, name: str) -> dict[Split, list[Row]]:
    """The rows by part, each in the order given.

    Raises:
        UserError: A part would be empty, other than the one to train on where everything is held out.
    """
    parts: dict[Split, list[Row]] = {part: [] for part in Split}
    for row in rows:
        parts[split_of(row, held_out)].append(row)
    empty = [part.name for part in Split if not parts[part] and (part is not Split.train or held_out < 1)]
    if empty:
        change = "raise" if parts[Split.train] else "lower"
        raise UserError(
            f"{name}: {len(rows)} rows with {len({normalised_prompt(row) for row in rows})} different prompts leave "
            f"none for {' and '.join(empty)} at held_out={held_out:g}; "
            f"add rows with other prompts, or {change} held_out"
        )
    return parts


def data_identity(config: DataConfig, base_dir: Path) -> str:
    """Hash of what determines the prepared rows: the source's content, the mapping, and the code that reads them.

    Where a file lies plays no part. `held_out` is not in it.

    Raises:
        UserError: The source cannot be found.
    """
    mapping = {name: value for name, value in dump(config).items() if name not in _NOT_IN_IDENTITY}
    parts = [_code_version(), source_identity(config, base_dir), mapping]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _code_version() -> str:
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _CODE for path in Path(__file__).parent.glob(pattern)):
        digest.update(path.read_bytes())
    return digest.hexdigest()
