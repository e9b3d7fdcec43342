"""JSON Schema for rewards: the jsonschema library, loaded only when a reward has a schema.

References to other documents are not fetched: a schema stands alone.
"""

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from rewards.parsing import parse_json

Problem = Callable[[Any], str | None]
"""What is wrong with a JSON value by a schema; None when nothing is."""

_PROBES: tuple[Any, ...] = (None, True, 0, "", [], {})


def schema_problem(schema: Any) -> Problem:
    """The check for a schema given as a mapping or as JSON text; made once per schema.

    Raises:
        ValueError: It is not a valid JSON Schema; says why.
    """
    if isinstance(schema, str):
        schema = parse_json(schema, strict=True)
    if not isinstance(schema, Mapping):
        raise ValueError(f"a JSON Schema is a mapping, not {schema!r:.60}")
    try:
        return _compiled(json.dumps(schema, sort_keys=True, allow_nan=False))
    except TypeError as error:
        raise ValueError(f"it holds what JSON cannot: {error}") from None


@functools.lru_cache(maxsize=4096)
def _compiled(text: str) -> Problem:
    import jsonschema.exceptions
    import jsonschema.validators
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    schema = json.loads(text)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.validators.Draft202012Validator)
    try:
        kind.check_schema(schema)
        validator = kind(schema, registry=REGISTRY)
        for probe in _PROBES:
            validator.is_valid(probe)
    except jsonschema.exceptions.SchemaError as error:
        raise ValueError(f"{error.message} (at {error.json_path})") from None
    except RecursionError:
        raise ValueError("it refers to itself without end") from None
    except Exception as error:  # unresolvable references, of a type that is private to jsonschema
        raise ValueError(str(error)) from None

    def problem(value: Any) -> str | None:
        try:
            error = next(iter(validator.iter_errors(value)), None)
        except RecursionError:
            return "nested too deeply"
        return None if error is None else f"{error.json_path}: {error.message:.200}"

    return problem
