"""Which settings of a deployed pipeline somebody may change who has Prefect's pages, and no shell on the machine.

A list of what may be changed, because a list of what may not is never complete. On it are numbers, switches and named
choices of training, the seed, the name, and the choice among experiments that are there already. Not on it is whatever
names a program, a file, an address or other code (rewards, data, models, `runs_dir`, `tracking`, `trainer`, `vllm`),
and whatever decides that a model is good enough to train further or to ship (`audit`, `probe`, `gate`, suites, held-out
shares). Values are literals: an interpolation (`${oc.env:TOKEN}`) could show a secret.
"""

import enum
import re
import types
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

from conf.errors import ConfigError
from conf.loader import suggestion
from conf.schema import RatchetConfig
from conf.vllm import VLLMConfig

SECTIONS = ("sft", "pairs", "preference", "reinforce")
"""Their numbers, switches and named choices may be changed."""

ALLOWED = f"seed, name, experiment, and numbers, switches and named choices of {', '.join(SECTIONS)} (not of its vllm)"
"""The list in words."""

_PATTERNS = {bool: "true|false", int: r"[+-]?\d+", float: r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"}
"""How a literal of a type is written."""


def check_editable(override: str) -> None:
    """See that an override changes only what may be changed.

    Raises:
        ConfigError: It does not; says what may be changed, or what the value may be.
    """
    key, _, value = override.partition("=")
    check_editable_key(key)
    if not re.fullmatch(editable()[key], value, re.ASCII):
        raise ConfigError(f"{override}: a run of a deployment takes a plain value for {key}, without interpolation")


def check_editable_key(key: str) -> None:
    """See that a key is on the list.

    Raises:
        ConfigError: It is not.
    """
    if key not in editable():
        raise ConfigError(
            f"{key}: may not be changed in a run of a deployment; {suggestion(key, editable())}allowed: {ALLOWED}; "
            "for anything else deploy again, on the machine itself"
        )


@cache
def editable() -> dict[str, str]:
    """The keys that may be changed, with a pattern of the values they may be given."""
    hints = typing.get_type_hints(RatchetConfig)
    found = {"seed": _PATTERNS[int], "name": r"\w[\w.-]*", "experiment": r"\w[\w-]*"}
    for section in SECTIONS:
        found.update(_fields(section, hints[section]))
    return found


def _fields(section: str, cls: Any) -> Iterator[tuple[str, str]]:
    for name, hint in typing.get_type_hints(cls).items():
        key, options = f"{section}.{name}", typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kind = options[0]
        empty = "|null" if type(None) in options else ""
        if kind in _PATTERNS:
            yield key, _PATTERNS[kind] + empty
        elif isinstance(kind, type) and issubclass(kind, enum.Enum):
            yield key, "|".join(kind.__members__) + empty
        elif isinstance(kind, type) and hasattr(kind, "__dataclass_fields__") and kind is not VLLMConfig:
            yield from _fields(key, kind)
