"""JSON as a reply gives it: read strictly by RFC 8259, with at most one code fence around it."""

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

_WHITE_SPACE = " \t\n\r"
_FENCE = re.compile(r"(?P<fence>`{3,}|~{3,})[^\n`]*\n(?P<inside>.*)\n[ \t]*(?P=fence)", re.DOTALL)


def parse_json(text: str, *, strict: bool) -> Any:
    """The value a text stands for.

    No NaN or Infinity, no duplicate keys, no number beyond a double's range, nothing before or after. Unless
    `strict`, one Markdown code fence may surround the whole.

    Raises:
        ValueError: The text is no such JSON; says why.
    """
    text = text.strip(_WHITE_SPACE)
    fenced = None if strict else _FENCE.fullmatch(text)
    try:
        return _decode(fenced["inside"] if fenced else text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"duplicate key {twice!r:.80}")
    return result


def _integer(digits: str) -> int:
    if len(digits) > 310 or abs(int(digits)) > sys.float_info.max:
        raise ValueError("a number is out of range")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if abs(value) > sys.float_info.max:
        raise ValueError("a number is out of range")
    return value


_decode = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_int=_integer, parse_float=_float
).decode


def equal_json(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same: true is not 1, 1 is 1.0, the order of keys does not matter."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal_json(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal_json, one, other))
    return bool(one == other)
