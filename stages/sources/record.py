"""One row as its source has it, and what a value may be so that the row survives being written as JSON."""

import datetime
import decimal
import numbers
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from conf.errors import UserError


class Record(NamedTuple):
    """One row of a source.

    Attributes:
        place: Where it stands, for messages: the file and its line, or the source and the number of the row.
        values: Columns to values, with the types the source has. A column the row lacks is not a key.
    """

    place: str
    values: dict[str, Any]


def numbered(name: str, rows: Iterable[Any], unit: str = "row") -> Iterator[Record]:
    """Records from mappings, counted from 1.

    Raises:
        UserError: A row is no mapping, or has a value that JSON cannot express.
    """
    for number, row in enumerate(rows, start=1):
        yield record(f"{name}, {unit} {number}", row)


def record(place: str, row: Any) -> Record:
    """One record, its values made plain.

    Raises:
        UserError: The row is no mapping, or has a value that JSON cannot express.
    """
    if not isinstance(row, Mapping):
        raise UserError(f"{place}: expected an object of columns and values, got {_shown(row)}")
    return Record(place, {str(key): plain(value, f"{place}, column {str(key)!r}") for key, value in row.items()})


def without_nulls(value: Any) -> Any:
    """Drop empty cells, also inside structs: a columnar format writes null for what a row lacks."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def plain(value: Any, place: str) -> Any:
    """The value in JSON types: dates become ISO text, decimals become numbers, tuples become lists.

    Raises:
        UserError: There is no faithful JSON form (bytes, images, text that is not valid Unicode, ...).
    """
    if isinstance(value, str):
        return _valid_text(value, place)
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item, place) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, place) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    kind = type(value).__name__
    raise UserError(f"{place}: a value of type {kind} cannot be kept; use text, numbers, lists or objects")


def _valid_text(value: str, place: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{place}: the text has half of a surrogate pair, which is not valid Unicode") from None
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
