"""Rows from files: one short reader per format, each keeping the types that its format has.

A csv or tsv cell is text, always: `007` stays `007`. JSON numbers stay numbers. Parquet has its own types. Nothing
passes through a data frame, which would fill what a row lacks.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conf.errors import UserError
from conf.textfile import read_text
from stages.sources.record import Record, numbered, record, without_nulls

_LONGEST_CELL = 2**31 - 1


def read_file(path: Path, name: str) -> Iterator[Record]:
    """The rows of a csv, tsv, jsonl, json or parquet file, in their order.

    Args:
        path: The file; its suffix is one of `READERS`.
        name: What to call the file in messages.

    Raises:
        UserError: The file is missing, empty or not what its suffix says; names the line and the column.
    """
    try:
        if path.stat().st_size == 0:
            raise UserError(f"{name}: the file is empty")
        yield from READERS[path.suffix.lower()](path, name)
    except FileNotFoundError:
        raise UserError(f"{name}: no such file (looked for {path.absolute()})") from None
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror or error}") from None


def _text(path: Path, name: str) -> str:
    text = read_text(path, name)
    if not text.strip():
        raise UserError(f"{name}: the file is empty")
    return text


def _read_csv(path: Path, name: str, delimiter: str = ",") -> Iterator[Record]:
    csv.field_size_limit(_LONGEST_CELL)
    lines = csv.reader(io.StringIO(_text(path, name), newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    line = 1
    try:
        for cells in lines:
            place, line = f"{name}, line {line}", lines.line_num + 1
            if not cells:
                continue
            if header is None:
                header = _header(cells, place)
            elif len(cells) != len(header):
                raise UserError(f"{place}: {len(cells)} cells, but the header has {len(header)} columns")
            else:
                yield record(place, dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise UserError(f"{name}, line {line}: is not valid csv: {error} (is a quote not closed or doubled?)") from None


def _read_tsv(path: Path, name: str) -> Iterator[Record]:
    return _read_csv(path, name, delimiter="\t")


def _header(columns: list[str], place: str) -> list[str]:
    twice = [column for column in dict.fromkeys(columns) if columns.count(column) > 1]
    if twice:
        raise UserError(f"{place}: two columns are called {twice[0]!r}; column names must differ")
    return columns


def _read_jsonl(path: Path, name: str) -> Iterator[Record]:
    for number, line in enumerate(_text(path, name).split("\n"), start=1):
        if line.strip():
            place = f"{name}, line {number}"
            yield record(place, _parsed(line, place, hint="; a jsonl file has one JSON object per line"))


def _read_json(path: Path, name: str) -> Iterator[Record]:
    rows = _parsed(_text(path, name), name)
    if not isinstance(rows, list):
        raise UserError(f"{name}: expected a list of objects, [{{...}}, ...], got one {type(rows).__name__}")
    return numbered(name, rows)


def _parsed(text: str, place: str, hint: str = "") -> Any:
    try:
        return json.loads(text, parse_constant=_not_json, object_pairs_hook=_distinct_keys)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}" if "\n" in text.strip() else f"column {error.colno}"
        raise UserError(f"{place}: is not valid JSON: {error.msg} at {where}{hint}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: is not valid JSON: {error}{hint}") from None


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return values


def _read_parquet(path: Path, name: str) -> Iterator[Record]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path) as file:
            _header(file.schema_arrow.names, name)
            batches = file.iter_batches()
            rows = (row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict"))
            yield from numbered(name, map(without_nulls, rows))
    except arrow.ArrowException as error:
        raise UserError(f"{name}: is not a parquet file that can be read: {str(error).splitlines()[0]}") from None


READERS: dict[str, Callable[[Path, str], Iterator[Record]]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
"""The formats, by suffix."""
