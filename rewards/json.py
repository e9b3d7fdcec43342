"""Reward `json`: the completion parses, conforms to a schema, has the keys it should."""

from pathlib import Path
from typing import Any

from conf.structured_rewards import JsonConfig
from rewards.contract import Reward, Sample, Value
from rewards.parsing import parse_json
from rewards.schema import schema_of


def json(config: JsonConfig, folder: Path | None) -> Reward:
    """0 when the completion does not parse or does not conform; else the fraction of `keys` present (1 without keys).

    Raises:
        ConfigError: The configured schema cannot be read or is not a valid JSON Schema.
    """
    problem_for = schema_of(config.schema, config.schema_column, folder)

    def reward(sample: Sample) -> Value:
        problem_of = problem_for(sample)
        try:
            parsed = parse_json(sample.completion, strict=config.strict)
        except ValueError as error:
            return Value(0.0, f"does not parse: {error}")
        problem = problem_of(parsed)
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
