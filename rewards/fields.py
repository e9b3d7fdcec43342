"""Reward `fields`: information extraction, judged field by field."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from conf.structured_rewards import FieldsConfig
from rewards.contract import Reward, RewardError, Sample, Value, shown
from rewards.number import close, exactly
from rewards.parsing import parse_json
from rewards.text import normalise


def fields(config: FieldsConfig) -> Reward:
    """The fraction of the reference's fields that agree, less `extra_penalty` per extra key, at least 0.

    0 when the completion is not a JSON object.
    """

    def reward(sample: Sample) -> Value:
        expected = _reference(config.column, sample)
        try:
            got = parse_json(sample.completion, strict=config.strict)
        except ValueError as error:
            return Value(0.0, f"does not parse: {error}")
        if not isinstance(got, dict):
            return Value(0.0, "is not a JSON object")
        wrong = [key for key, value in expected.items() if not _agree(got.get(key), value, config.tolerance)]
        extra = [key for key in got if key not in expected]
        value = 1 - len(wrong) / len(expected) - config.extra_penalty * len(extra)
        return Value(max(0.0, value), f"wrong: {', '.join(wrong) or 'none'}; extra: {', '.join(extra) or 'none'}")

    return reward


def _reference(column: str | None, sample: Sample) -> dict[str, Any]:
    where = "the reference" if column is None else f"column {column!r}"
    value = sample.reference if column is None else sample.row.get(column)
    if value is None:
        raise RewardError(f"{where} is missing")
    if isinstance(value, str):
        try:
            value = parse_json(value, strict=True)
        except ValueError as error:
            raise RewardError(f"{where} is text that is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise RewardError(f"{where} must be a mapping of fields, got {shown(value)}")
    if not value:
        raise RewardError(f"{where} has no fields, so everything would agree with it")
    return {str(key): item for key, item in value.items()}


def _agree(got: Any, expected: Any, tolerance: float) -> bool:
    """Whether two values agree, by the type of the expected one; nested objects may have no extra keys."""
    if expected is None or isinstance(expected, bool):
        return got is expected
    if isinstance(expected, int | float):
        return _numbers_agree(got, expected, tolerance)
    if isinstance(expected, str):
        return isinstance(got, str) and normalise(got) == normalise(expected)
    if isinstance(expected, Mapping):
        return (
            isinstance(got, dict)
            and all(key in expected for key in got)
            and all(_agree(got.get(key), value, tolerance) for key, value in expected.items())
        )
    if isinstance(expected, list | tuple):
        return (
            isinstance(got, list)
            and len(got) == len(expected)
            and all(_agree(one, other, tolerance) for one, other in zip(got, expected, strict=True))
        )
    raise RewardError(f"the reference holds {shown(expected)}, which JSON does not have")


def _numbers_agree(got: Any, expected: float, tolerance: float) -> bool:
    number = exactly(expected)
    if not isinstance(number, Fraction):
        raise RewardError(f"the reference holds {expected}, which JSON does not have")
    value = None if isinstance(got, str) else exactly(got)
    return value is not None and close(value, number, tolerance)
