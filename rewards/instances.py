"""The smallest JSON values that a JSON Schema allows: what a model may find that fills a form with nothing."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from rewards.schema import schema_problem

_MOST_CANDIDATES = 500
_DEEPEST = 12
_LONGEST = 1000
_TYPES = ("object", "string", "integer", "boolean", "null", "array")
_TEXTS = ("x", "0", "A", "2000-01-01", "a@b.c")
"""What a text is made of, where a pattern may refuse the first of them."""


def smallest_instances(schema: Mapping[str, Any], most: int) -> list[str]:
    """The shortest of the valid values that are tried, as JSON text; none when none of them is valid.

    Covers types, `required`, `properties`, `enum`, `const`, bounds, `anyOf`, `oneOf`, `allOf` and local references.
    What it cannot construct (a `pattern` beyond dates and plain letters or digits, `not`) it may miss.

    Raises:
        ValueError: It is not a valid JSON Schema.
    """
    problem = schema_problem(schema)
    tried = itertools.islice(_candidates(schema, schema, 0), _MOST_CANDIDATES)
    valid = dict.fromkeys(json.dumps(value) for value in tried if problem(value) is None)
    return sorted(valid, key=len)[:most]


def _candidates(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[Any]:
    """Values that are worth a try, the smallest of each kind first."""
    if not isinstance(schema, Mapping):
        schema = {}  # true, which allows everything; nothing valid comes of false
    if depth > _DEEPEST:
        return
    if "const" in schema:
        yield schema["const"]
    elif "enum" in schema:
        yield from schema["enum"]
    elif isinstance(schema.get("$ref"), str):
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        yield from _candidates(_merged(_pointed(schema["$ref"], root), rest), root, depth + 1)
    elif "allOf" in schema:
        merged: Mapping[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            merged = _merged(merged, part)
        yield from _candidates(merged, root, depth + 1)
    elif branches := [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
        yield from _in_turn([_candidates(_merged(rest, branch), root, depth + 1) for branch in branches])
    else:
        yield from _in_turn([_of_type(kind, schema, root, depth) for kind in _types(schema)])


def _types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return (kind,)
    return tuple(kind) if kind else _TYPES


def _of_type(kind: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[Any]:
    if kind == "object":
        yield from _objects(schema, root, depth)
    elif kind == "array":
        yield from _arrays(schema, root, depth)
    elif kind == "string":
        length = min(int(schema.get("minLength", 0)), _LONGEST)
        yield from dict.fromkeys(["x" * length, *(text for text in _TEXTS if "pattern" in schema), "0" * length])
    elif kind in ("integer", "number"):
        yield from _numbers(schema)
    else:
        yield from (False, True) if kind == "boolean" else (None,)


def _objects(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[Any]:
    properties = schema.get("properties", {})
    names = [*schema.get("required", ())]
    spare = [name for name in [*properties, *(f"x{number}" for number in range(9))] if name not in names]
    names += spare[: max(0, schema.get("minProperties", 0) - len(names))]
    other = schema.get("additionalProperties", {})
    columns = [list(itertools.islice(_candidates(properties.get(name, other), root, depth + 1), 8)) for name in names]
    for values in itertools.product(*columns):
        yield dict(zip(names, values, strict=True))


def _arrays(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[Any]:
    length, first = min(int(schema.get("minItems", 0)), _LONGEST), schema.get("prefixItems", [])
    kinds = [first[index] if index < len(first) else schema.get("items", {}) for index in range(length)]
    columns = [list(itertools.islice(_candidates(kind, root, depth + 1), 8)) for kind in kinds]
    yield from map(list, itertools.product(*columns))


def _numbers(schema: Mapping[str, Any]) -> Iterator[Any]:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    step = schema.get("multipleOf", 1)
    yield from (0, 1, step)
    for bound in (low, above, high, below):
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            yield from (bound, math.floor(bound) + 1, math.ceil(bound) - 1)
            yield from (math.ceil(bound / step) * step, math.floor(bound / step) * step)
    if isinstance(low, int | float) and isinstance(high, int | float):
        yield (low + high) / 2


def _in_turn(iterators: list[Iterator[Any]]) -> Iterator[Any]:
    """One of each, then the next of each, so that a long one does not keep the others from being tried."""
    end = object()
    for values in itertools.zip_longest(*iterators, fillvalue=end):
        yield from (value for value in values if value is not end)


def _merged(one: Any, other: Any) -> Mapping[str, Any]:
    """A schema for what two schemas ask together, as far as that is a matter of putting their parts together."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return one if isinstance(one, Mapping) else other if isinstance(other, Mapping) else {}
    result = {**one, **other}
    if "properties" in one and "properties" in other:
        both = one["properties"].keys() & other["properties"].keys()
        merged = {name: _merged(one["properties"][name], other["properties"][name]) for name in both}
        result["properties"] = {**one["properties"], **other["properties"], **merged}
    if "required" in one and "required" in other:
        result["required"] = list(dict.fromkeys([*one["required"], *other["required"]]))
    if "allOf" in one and "allOf" in other:
        result["allOf"] = [*one["allOf"], *other["allOf"]]
    return result


def _pointed(reference: str, root: Mapping[str, Any]) -> Any:
    """What a local reference such as `#/$defs/name` points at; everything, for any other."""
    target: Any = root
    for part in reference.removeprefix("#").strip("/").split("/") if reference != "#" else []:
        part = part.replace("~1", "/").replace("~0", "~")
        target = target.get(part) if isinstance(target, Mapping) else None
    return {} if target is None else target
