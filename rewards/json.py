"""Reward `json`: the completion parses, conforms to a schema, has the keys it should."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from conf.errors import ConfigError
from conf.rewards import JsonConfig
from rewards.contract import Reward, RewardError, Sample, Value
from rewards.parsing import parse_json
from rewards.schema import Problem, schema_problem
from rewards.sources import resolve


def json(config: JsonConfig, folder: Path | None) -> Reward:
    """0 when the completion does not parse or does not conform; else the fraction of `keys` present (1 without keys).

    Raises:
        ConfigError: The configured schema cannot be read or is not a valid JSON Schema.
    """
    problem_for = _schema(config, folder)

    def reward(sample: Sample) -> Value:
        schema_says = problem_for(sample)
        try:
            parsed = parse_json(sample.completion, strict=config.strict)
        except ValueError as error:
            return Value(0.0, f"does not parse: {error}")
        problem = schema_says(parsed)
        if problem is not None:
            return Value(0.0, f"does not conform: {problem}")
        return _keys_present(config.keys, parsed)

    return reward


def _keys_present(keys: list[str], parsed: Any) -> Value:
    if not keys:
        return Value(1.0, "parses")
    if not isinstance(parsed, dict):
        return Value(0.0, "parses, but is not an object with keys")
    missing = [key for key in keys if key not in parsed]
    return Value(1 - len(missing) / len(keys), f"parses; missing keys: {', '.join(missing) or 'none'}")


def _schema(config: JsonConfig, folder: Path | None) -> Callable[[Sample], Problem]:
    """How a sample's schema is found: its row's column, the one configured, or none."""
    if config.schema_column is not None:
        column = config.schema_column
        return lambda sample: _row_schema(sample, column)
    if config.schema is None:
        return lambda sample: lambda parsed: None
    configured = _configured_schema(config.schema, folder)
    return lambda sample: configured


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
