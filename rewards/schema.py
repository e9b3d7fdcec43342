"""JSON Schema for rewards: the jsonschema library, loaded only when a reward has a schema.

A schema stands alone: references to other documents are mistakes, and nothing is ever fetched. `format` is an
annotation, as the standard and the library have it by default: it refuses nothing.
"""

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from conf.errors import ConfigError
from rewards.contract import RewardError, Sample, shown
from rewards.parsing import parse_json
from rewards.sources import resolve

Problem = Callable[[Any], str | None]
"""What is wrong with a JSON value by a schema; None when nothing is."""

_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


def schema_of(schema: Any, column: str | None, folder: Path | None) -> Callable[[Sample], Problem]:
    """How a sample's schema is found: in a column of its row, or the one configured (inline or as a file), or none.

    The function raises RewardError for a row whose column holds no valid schema.

    Raises:
        ConfigError: The configured schema cannot be read or is not a valid JSON Schema.
    """
    if column is not None:
        return lambda sample: _row_schema(sample, column)
    if schema is None:
        return lambda sample: lambda parsed: None
    configured = _configured_schema(schema, folder)
    return lambda sample: configured


def schema_problem(schema: Any) -> Problem:
    """The check for a schema given as a mapping or as JSON text; made once per schema.

    Raises:
        ValueError: It is not a valid JSON Schema; says why.
    """
    if isinstance(schema, str):
        schema = parse_json(schema, strict=True)
    if not isinstance(schema, Mapping):
        raise ValueError(f"a JSON Schema is a mapping, not {shown(schema)}")
    try:
        return _compiled(json.dumps(schema, sort_keys=True, allow_nan=False))
    except TypeError as error:
        raise ValueError(f"it holds what JSON cannot: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply, or refers to itself without end") from None


@functools.lru_cache(maxsize=4096)
def _compiled(text: str) -> Problem:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    schema = json.loads(text)
    dialect = schema.get("$schema", Draft202012Validator.META_SCHEMA["$schema"])
    kind = validator_for(schema | {"$schema": str(dialect)}, default=None)
    if kind is None:
        raise ValueError(f"unknown $schema {shown(dialect)}")
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"{error.message:.200} (at {error.json_path})") from None
    _check_references(schema, kind.META_SCHEMA["$schema"])
    validator = kind(schema, registry=REGISTRY)

    def problem(value: Any) -> str | None:
        try:
            error = next(iter(validator.iter_errors(value)), None)
            return None if error is None else f"{error.json_path}: {error.message:.200}"
        except RecursionError:
            return "nested too deeply"

    return problem


def _check_references(schema: Any, dialect: str) -> None:
    """Resolve every reference, also those that only some value would lead to, and refuse those that go in circles.

    A circle is one that no step into the value interrupts, so that validation would never end.
    """
    from jsonschema_specifications import REGISTRY
    from referencing.jsonschema import specification_with

    done: set[int] = set()

    def visit(resource: Any, resolver: Any, path: frozenset[int] = frozenset()) -> None:
        contents = resource.contents
        if not isinstance(contents, Mapping) or id(contents) in done:
            return
        if id(contents) in path:
            raise ValueError("it refers to itself without end")
        path |= {id(contents)}
        for key in _REFERENCES & contents.keys():
            target = _resolved(resolver, contents[key])
            visit(specification.create_resource(target.contents), target.resolver, path)
        for part in _in_place(contents):
            inner = specification.create_resource(part)
            visit(inner, resolver.in_subresource(inner), path)
        done.add(id(contents))
        for inner in resource.subresources():
            visit(inner, resolver.in_subresource(inner))

    specification = specification_with(dialect)
    root = specification.create_resource(schema)
    visit(root, REGISTRY.resolver_with_root(root))


def _resolved(resolver: Any, reference: Any) -> Any:
    try:
        return resolver.lookup(reference)
    except Exception as error:  # of several types of the referencing library
        raise ValueError(f"the reference {shown(reference)} leads nowhere; other documents are not fetched") from error


def _in_place(contents: Mapping[str, Any]) -> Iterator[Any]:
    """The subschemas that judge the same value as the schema itself."""
    for key in ("allOf", "anyOf", "oneOf"):
        yield from contents.get(key, ())
    yield from (contents[key] for key in ("not", "if", "then", "else") if key in contents)


def _row_schema(sample: Sample, column: str) -> Problem:
    schema = sample.row.get(column)
    if schema is None:
        raise RewardError(f"the row has no schema in column {column!r}; columns: {', '.join(map(str, sample.row))}")
    try:
        return schema_problem(schema)
    except ValueError as error:
        raise RewardError(f"column {column!r} is not a valid JSON Schema: {error}") from None


def _configured_schema(schema: Any, folder: Path | None) -> Problem:
    where = "schema"
    try:
        if isinstance(schema, str):
            path = resolve(schema, folder)
            where = f"schema: {path}"
            schema = path.read_text(encoding="utf-8")
        return schema_problem(schema)
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"{where}: is not a valid JSON Schema: {error}") from None
