"""Reward `tool_call`: the staged score of a completion that should be one JSON tool call.

Getting the form right earns half; the rest are task checks (the expected tool, its arguments, a hand-off where one is
due), because a form alone is what a model learns to fill with nothing.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conf.structured_rewards import CallForm, ToolCallConfig
from rewards.contract import Reward, RewardError, Sample, Value, shown
from rewards.parsing import equal_json, parse_json
from rewards.schema import Problem, schema_of

KEYS = {CallForm.plain: ("tool", "args"), CallForm.tagged: ("name", "arguments")}
"""What the tool and its arguments are called, by form."""
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"

Term = tuple[str, float, str]
"""Name of a stage that applies, the share of its points, and a remark for a person."""


def tool_call(config: ToolCallConfig, folder: Path | None) -> Reward:
    """The sum of the points of every stage that applies; `terms` has them by name.

    The schema is checked on the object inside the tags. Absent `args` are no arguments; `args` that are no object
    match none.

    Raises:
        ConfigError: The configured schema cannot be read or is not a valid JSON Schema.
    """
    problem_for = schema_of(config.schema, config.schema_column, folder)
    points = asdict(config.points)

    def reward(sample: Sample) -> Value:
        expected = expected_call(config, sample) if config.task_checks else None
        stages = list(_stages(config, sample.completion, problem_for(sample), allowed_tools(config, sample), expected))
        terms = {name: share * points[name] for name, share, _ in stages if share * points[name]}
        remarks = {name: f" ({remark})" for name, _, remark in stages if remark}
        parts = [f"{name.replace('_', ' ')} {value:+.3g}{remarks.pop(name, '')}" for name, value in terms.items()]
        parts += [f"{name.replace('_', ' ')} +0{remark}" for name, remark in remarks.items()]
        # 1.0, not the 0.9999999999999999 of the sum
        return Value(round(math.fsum(terms.values()), 12), ", ".join(parts) or "nothing counts", terms)

    return reward


@dataclass(frozen=True, slots=True)
class Call:
    """A tool and what it is called with."""

    tool: Any
    arguments: Any


def _stages(
    config: ToolCallConfig, completion: str, problem_of: Problem, tools: list[str], expected: Call | None
) -> Iterator[Term]:
    try:
        parsed = _read(completion, config.form)
    except ValueError as error:
        yield "unparseable", 1, str(error)
        return
    yield "parses", 1, ""
    problem = problem_of(parsed) if isinstance(parsed, dict) else "is not an object"
    if problem is not None:
        yield "invalid", 1, problem
        return
    yield "valid", 1, ""
    tool_key, arguments_key = KEYS[config.form]
    call = Call(parsed.get(tool_key), parsed.get(arguments_key, {}))
    if call.tool is not None:
        known = call.tool in tools
        yield "known_tool" if known else "invented_tool", 1, "" if known else shown(call.tool)
    if expected is not None:
        yield from _task_checks(config, call, expected)
    if len(completion) > config.max_chars:
        yield "long", 1, f"{len(completion)} characters"


def _task_checks(config: ToolCallConfig, call: Call, expected: Call) -> Iterator[Term]:
    right_tool = call.tool == expected.tool
    if right_tool:
        yield "expected_tool", 1, ""
    share, wrong = _agreement(call.arguments, expected.arguments, config.arguments)
    yield "expected_arguments", share, f"wrong: {', '.join(wrong)}" if wrong else ""
    if right_tool and call.tool == config.handoff_tool:
        yield "handoff", 1, ""


def _agreement(got: Any, expected: Mapping[str, Any], names: list[str] | None) -> tuple[float, list[str]]:
    """The fraction of the compared arguments that agree, and those that do not; one that both lack agrees."""
    if not isinstance(got, dict):
        return 0.0, ["not an object"]
    compared = list(dict.fromkeys([*expected, *got])) if names is None else names
    wrong = [name for name in compared if not _same(got, expected, name)]
    return (1 - len(wrong) / len(compared) if compared else 1.0), wrong


def _same(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> bool:
    if name not in one or name not in other:
        return name not in one and name not in other
    return equal_json(one[name], other[name])


def _read(text: str, form: CallForm) -> Any:
    if form is CallForm.tagged:
        text = text.strip()
        if not text.startswith(_OPEN) or not text.endswith(_CLOSE):
            raise ValueError(f"not one {_OPEN}...{_CLOSE}")
        text = text.removeprefix(_OPEN).removesuffix(_CLOSE)
    return parse_json(text, strict=True)


def written(value: Any, form: CallForm) -> str:
    """A JSON value as a completion of that form."""
    text = json.dumps(value, ensure_ascii=False)
    return f"{_OPEN}{text}{_CLOSE}" if form is CallForm.tagged else text


def expected_call(config: ToolCallConfig, sample: Sample) -> Call:
    """The right call of a row: flat, `tool` with the arguments beside it, or in the form of a completion.

    Raises:
        RewardError: There is none.
    """
    column = config.expected_column
    where = "the reference" if column is None else f"column {column!r}"
    value = sample.reference if column is None else sample.row.get(column)
    if value is None:
        raise RewardError(f"{where}, which holds the expected call, is missing")
    if isinstance(value, str):
        try:
            value = _read(value, config.form if value.lstrip().startswith(_OPEN) else CallForm.plain)
        except ValueError as error:
            raise RewardError(f"{where}, which holds the expected call, is text that is not JSON: {error}") from None
    if isinstance(value, Mapping):
        call = Call(value.get("tool"), {name: item for name, item in value.items() if name != "tool"})
        tool_key, arguments_key = KEYS[config.form]
        if {tool_key} <= set(value) <= {tool_key, arguments_key} and isinstance(value.get(arguments_key, {}), Mapping):
            call = Call(value[tool_key], value.get(arguments_key, {}))
        if isinstance(call.tool, str):
            return call
    raise RewardError(f"{where} must be the expected call, {{tool: ..., arguments beside it}}; got {shown(value)}")


def allowed_tools(config: ToolCallConfig, sample: Sample) -> list[str]:
    """The names of the tools that may be called.

    Raises:
        RewardError: The row's column does not list them.
    """
    column = config.tools_column
    return config.tools if column is None else _row_tools(sample.row.get(column), column)


def _row_tools(value: Any, column: str) -> list[str]:
    """Names from names, or from definitions: `{name: ...}` or `{type: function, function: {name: ...}}`."""
    if isinstance(value, str):
        try:
            value = parse_json(value, strict=True)
        except ValueError as error:
            raise RewardError(f"column {column!r} is text that is not JSON: {error}") from None
    names = [_tool_name(item) for item in value] if isinstance(value, list | tuple) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise RewardError(f"column {column!r} must list the allowed tools by name, got {shown(value)}")
    return names


def _tool_name(item: Any) -> Any:
    if isinstance(item, Mapping):
        inner = item.get("function", item)
        return inner.get("name") if isinstance(inner, Mapping) else None
    return item
