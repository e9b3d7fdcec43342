"""The settings of rewards for completions that are JSON: documents, extracted fields, tool calls."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conf.errors import ConfigError
from conf.options import option
from conf.reward_base import RewardConfig


class CallForm(enum.Enum):
    """How a tool call is written: as bare JSON, or inside the tags of Hermes and Qwen chat templates."""

    plain = "plain"
    tagged = "tagged"


@dataclass(kw_only=True)
class JsonConfig(RewardConfig):
    """1 when the completion is JSON (RFC 8259) and conforms to the schema, times the fraction of `keys` it has."""

    strict: bool = False
    """Refuse the one code fence that may otherwise surround the JSON."""
    keys: list[str] = field(default_factory=list)
    """Keys an object should have; the value is the fraction present (0 for anything but an object)."""
    schema: Any = None
    """JSON Schema: inline (a mapping), or the path of a JSON file."""
    schema_column: str | None = None
    """Column of the row that holds its JSON Schema (a mapping, or JSON text), in place of `schema`."""

    def __post_init__(self) -> None:
        """Refuse two schemas, and forms a schema cannot have."""
        super().__post_init__()
        _check_schema(self.schema, self.schema_column)
        if len(set(self.keys)) < len(self.keys):
            raise ConfigError(f"keys: names a key twice: {', '.join(self.keys)}")


@dataclass(kw_only=True)
class FieldsConfig(RewardConfig):
    """Extraction: the fraction of the reference's fields whose values agree with the completion's JSON object."""

    column: str | None = None
    """Column of the row with the right fields (a mapping, or JSON text); the row's reference when absent."""
    tolerance: float = option(1e-6, ge=0)
    """Largest difference of numbers, relative to the reference."""
    extra_penalty: float = option(0.0, ge=0)
    """What every key that is not in the reference costs; the value never falls below 0."""
    strict: bool = False
    """Refuse the one code fence that may otherwise surround the JSON."""


@dataclass(kw_only=True)
class ToolCallPoints:
    """What each stage of a tool call's score adds; a penalty is negative."""

    unparseable: float = -1.0
    """The completion is not JSON (or not in its tags); nothing else counts then."""
    parses: float = 0.2
    """It is JSON."""
    invalid: float = -0.5
    """It is no object, or does not conform to the schema; nothing else counts then."""
    valid: float = 0.3
    """It conforms."""
    known_tool: float = 0.2
    """The tool is one of the allowed."""
    invented_tool: float = -0.5
    """The tool is named, and is not one of the allowed."""
    expected_tool: float = 0.2
    """Task check: it is the expected tool."""
    expected_arguments: float = 0.1
    """Task check: times the fraction of the compared arguments that equal the expected ones."""
    handoff: float = 0.2
    """Task check: a hand-off was expected, and the tool is `handoff_tool`."""
    long: float = -0.1
    """The completion has more than `max_chars` characters."""


@dataclass(kw_only=True)
class ToolCallConfig(RewardConfig):
    """The staged score of a completion that should be one JSON tool call: the sum of the `points` that apply."""

    tools: list[str] = field(default_factory=list)
    """Names of the allowed tools; this or `tools_column`."""
    tools_column: str | None = None
    """Column of the row that lists its allowed tools: names, or definitions as chat templates take them."""
    schema: Any = None
    """JSON Schema of a call, for every row: inline (a mapping), or the path of a JSON file."""
    schema_column: str | None = None
    """Column of the row that holds its JSON Schema; `schema` when neither is given."""
    expected_column: str | None = "expected"
    """Column of the right call: `{tool: ..., <arguments beside it>}`, or as a completion; null: the row's reference."""
    arguments: list[str] | None = None
    """Names of the arguments to compare; every one that the completion or the expected call has, when absent."""
    task_checks: bool = True
    """Compare with the expected call; without, only form and tool name count, and no row needs an expected call."""
    handoff_tool: str = "handoff"
    """The tool that hands over to a person."""
    form: CallForm = CallForm.plain
    """`plain`: `{"tool", "args"}`; `tagged`: `<tool_call>{"name", "arguments"}</tool_call>`."""
    max_chars: int = option(800, ge=1)
    """Characters beyond which `points.long` applies."""
    points: ToolCallPoints = field(default_factory=ToolCallPoints)
    """What each stage adds."""

    def __post_init__(self) -> None:
        """Require one origin of the tools, at most one of the schema, and arguments that can be compared."""
        super().__post_init__()
        if bool(self.tools) == bool(self.tools_column):
            raise ConfigError("tools: give either tools (a list of names) or tools_column")
        if self.schema is None and self.schema_column is None:
            self.schema_column = "schema"
        _check_schema(self.schema, self.schema_column)
        if self.arguments is not None and (not self.arguments or len(set(self.arguments)) < len(self.arguments)):
            raise ConfigError("arguments: names no argument, or one twice; leave it out to compare all of them")


def _check_schema(schema: Any, column: str | None) -> None:
    """Refuse two schemas, and forms a schema cannot have."""
    if schema is not None and column is not None:
        raise ConfigError("schema_column: stands in place of schema; give one of them")
    if schema is not None and not isinstance(schema, str | Mapping):
        raise ConfigError(f"schema: expected a JSON Schema (a mapping) or the path of one, got {schema!r}")
