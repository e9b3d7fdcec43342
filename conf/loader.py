"""The one strict door from plain mappings (composed by Hydra, or read from YAML) to typed configuration.

Everything is checked here once: unknown keys, types, limits, missing values. What comes out is a dataclass, and no
other part of Ratchet looks at a raw mapping again.
"""

import dataclasses
import difflib
import enum
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from conf.errors import ConfigError

T = TypeVar("T")

TRL_NAMES = {
    "num_generations": "group_size",
    "max_completion_length": "max_new_tokens",
    "max_length_completion": "max_new_tokens",
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "grad_accum",
    "num_train_epochs": "epochs",
    "lora_alpha": "lora.alpha",
    "lora_dropout": "lora.dropout",
    "use_rslora": "lora.rank_stabilised",
    "mask_truncated_completions": "mask_truncated",
}
"""TRL, transformers and peft names that Ratchet has its own word for."""

_LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "gt": (operator.gt, "above"),
    "ge": (operator.ge, "at least"),
    "lt": (operator.lt, "below"),
    "le": (operator.le, "at most"),
}


def load(cls: type[T], values: Any, where: str = "") -> T:
    """Make the dataclass `cls` from a mapping.

    Args:
        cls: The dataclass to make. Nested dataclasses, enums (by member name), `X | None`, `list[X]` and
            `dict[str, X]` are understood; `Any` is taken as it is. `__post_init__` may raise a ConfigError that starts
            with a field's name.
        values: The mapping, with string keys.
        where: The dotted key of the mapping, for messages.

    Raises:
        ConfigError: A key is unknown, missing, of the wrong type or out of range; names it and what is allowed.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where or 'configuration'}: expected a mapping, got {_describe(values)}")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            raise ConfigError(unknown_key(str(key), list(fields), where, getattr(cls, "refused", {})))
    arguments = {}
    for name, field in fields.items():
        key = f"{where}.{name}" if where else name
        if name in values:
            arguments[name] = _convert(hints[name], values[name], key)
            _check_limits(arguments[name], field.metadata.get("limits", {}), key)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{key}: is required")
    try:
        return cls(**arguments)
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}" if where else str(error)) from None


def dump(value: Any) -> Any:
    """The plain form of a configuration value (JSON types only): the inverse of `load`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: dump(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): dump(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [dump(item) for item in value]
    return value


def unknown_key(key: str, allowed: list[str], where: str = "", refused: Mapping[str, str] | None = None) -> str:
    """The message for a key that does not exist: the nearest one that does, and all of them.

    `refused` has what is to be said of keys that somebody may expect there (a dataclass's `refused`).
    """
    full = f"{where}.{key}" if where else key
    if refused and key in refused:
        return f"{full}: {refused[key]}"
    if key in TRL_NAMES:
        return f"{full}: unknown key; Ratchet calls this {TRL_NAMES[key]!r}"
    return f"{full}: unknown key; {suggestion(key, allowed)}allowed: {', '.join(sorted(allowed))}"


def suggestion(key: str, allowed: Iterable[str]) -> str:
    """`did you mean 'x'? ` for the nearest name there is, or nothing."""
    close = difflib.get_close_matches(key, allowed, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def _convert(hint: Any, value: Any, key: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (inner,) = (argument for argument in arguments if argument is not types.NoneType)
        return _convert(inner, value, key)
    if origin is list:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{key}: expected a list, got {_describe(value)}")
        return [_convert(arguments[0], item, f"{key}[{index}]") for index, item in enumerate(value)]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}: expected a mapping, got {_describe(value)}")
        return {str(name): _convert(arguments[1], item, f"{key}.{name}") for name, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return load(typing.cast(type, hint), value, key)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _convert_enum(hint, value, key)
    return _convert_scalar(hint, value, key)


def _convert_enum(hint: type[enum.Enum], value: Any, key: str) -> enum.Enum:
    if isinstance(value, hint):
        return value
    if isinstance(value, str) and value in hint.__members__:
        return hint[value]
    raise ConfigError(f"{key}: expected one of {', '.join(hint.__members__)}; got {_describe(value)}")


def _convert_scalar(hint: Any, value: Any, key: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not hint:
        raise ConfigError(f"{key}: expected {_NAMES.get(hint, hint)}, got {_describe(value)}")
    if hint is float and not math.isfinite(value):
        raise ConfigError(f"{key}: expected a finite number, got {value}")
    return value


def _check_limits(value: Any, limits: Mapping[str, float], key: str) -> None:
    if value is None:
        return
    for name, bound in limits.items():
        holds, words = _LIMITS[name]
        if not holds(value, bound):
            raise ConfigError(f"{key}: must be {words} {bound:g}, got {value}")


_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _describe(value: Any) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    kind = _NAMES.get(type(value), type(value).__name__)
    return f"{kind} ({str(value)!r})" if isinstance(value, str) else f"{kind} ({value})"
