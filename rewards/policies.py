"""Policies that do not do the job, for the audit: what each of them answers to every training row.

Nothing here reads a prompt to answer it. What can be of any length is held to the longest completion that training
allows, at four characters a token; so a listing of all references counts for as much as a model could write of it.
"""

import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.reward_base import RewardConfig
from conf.structured_rewards import CallForm, FieldsConfig, JsonConfig, ToolCallConfig
from rewards.contract import RewardError, Sample
from rewards.instances import smallest_instances
from rewards.parsing import parse_json
from rewards.sources import resolve
from rewards.tool_call import KEYS, allowed_tools, expected_call, written

CHARACTERS_PER_TOKEN = 4
_MOST_CONSTANTS = 50
_MOST_TOOLS = 20
_MOST_INSTANCES = 64
_WHITE_SPACE = " \n"
_FILLER = "and so on "

Completions = list[str | None]
"""A completion for every row; None where a policy has none."""


@dataclass(frozen=True, slots=True)
class Case:
    """A training row: what its rewards see, and the reply to learn, where there is one."""

    prompt: str
    reference: Any
    row: Mapping[str, Any]
    response: str | None = None

    def sample(self, completion: str) -> Sample:
        """What the rewards judge when the reply is `completion`."""
        return Sample(self.prompt, completion, self.reference, self.row)


def reference_forms(cases: Sequence[Case], configs: Mapping[str, RewardConfig]) -> list[Completions]:
    """The right answers as completions, in every form that the rows have.

    As the reply to learn, as the reference, or as the column in which a reward finds what it expects; a row that lacks
    one form has another. Which form the rewards mean, their scores tell.
    """
    forms = [[case.response for case in cases], [_text(case.reference) for case in cases]]
    for config in configs.values():
        if isinstance(config, FieldsConfig) and config.column is not None:
            forms.append([_text(case.row.get(config.column)) for case in cases])
        if isinstance(config, ToolCallConfig) and config.task_checks:
            forms.append([_call(case, config) for case in cases])
    there = [form for form in forms if any(text is not None for text in form)]
    filled = [tuple(_first(*texts) for texts in zip(form, *there, strict=True)) for form in there]
    return [list(form) for form in dict.fromkeys(filled)]


def _first(*texts: str | None) -> str | None:
    return next((text for text in texts if text is not None), None)


def policies(
    cases: Sequence[Case],
    references: Completions,
    configs: Mapping[str, RewardConfig],
    limit: int,
    folder: Path | None = None,
) -> dict[str, list[Completions]]:
    """What every policy answers, by name (`conf.measuring.AUDIT_POLICIES`).

    Args:
        cases: The rows.
        references: Their right answers as completions.
        configs: The rewards.
        limit: Longest completion in tokens.
        folder: What relative paths in the rewards' settings are relative to.

    Returns:
        By policy its completions; several variants where the best of them is meant. None at all: it does not apply.
    """
    characters = limit * CHARACTERS_PER_TOKEN
    counted = [text for text, _ in Counter(text for text in references if text is not None).most_common()]

    def always(*texts: str) -> list[Completions]:
        return [[text] * len(cases) for text in texts]

    schemas = [_schema(case, configs, folder) for case in cases]
    return {
        "empty": always(""),
        "whitespace": always(_WHITE_SPACE),
        "empty_object": always("{}"),
        "smallest_instance": list(_smallest(schemas, configs)),
        "prompt": [[case.prompt[:characters] for case in cases]],
        "padding": always((_FILLER * (characters // len(_FILLER) + 1))[:characters]),
        "commonest_reference": always(*counted[:1]),
        "best_constant": always(*counted[:_MOST_CONSTANTS]),
        "all_references": always(_listed(counted, characters)) if len(counted) > 1 else [],
        "other_reference": [_next_other(references)] if len(counted) > 1 else [],
        "one_tool": list(_one_tool(cases, schemas, configs)),
    }


def _text(reference: Any) -> str | None:
    if reference is None or isinstance(reference, str):
        return reference
    if isinstance(reference, Mapping | list | tuple):
        return json.dumps(reference, ensure_ascii=False)
    return str(reference)


def _call(case: Case, config: ToolCallConfig) -> str | None:
    try:
        call = expected_call(config, case.sample(""))
    except RewardError:
        return None  # scoring it says so, as the reward's `on_error` wants it
    return written(dict(zip(KEYS[config.form], (call.tool, dict(call.arguments)), strict=True)), config.form)


def _tools(case: Case, config: ToolCallConfig) -> list[str]:
    try:
        return allowed_tools(config, case.sample(""))
    except RewardError:
        return []


def _listed(texts: Sequence[str], characters: int) -> str:
    """The commonest references, one a line, as many as fit; at least one."""
    text = texts[0]
    for other in texts[1:]:
        if len(text) + 1 + len(other) > characters:
            break
        text += f"\n{other}"
    return text


def _next_other(references: Completions) -> Completions:
    """For every row the reference of the next row that has another one."""
    following = [*references, *references]
    return [
        next((text for text in following[index + 1 :] if text is not None and text != own), None)
        for index, own in enumerate(references)
    ]


def _schema(case: Case, configs: Mapping[str, RewardConfig], folder: Path | None) -> Mapping[str, Any] | None:
    """The schema of the row's completions, as JSON: the first that a reward asks for."""
    for config in configs.values():
        if isinstance(config, JsonConfig | ToolCallConfig):
            schema = case.row.get(config.schema_column) if config.schema_column else config.schema
            if isinstance(schema, str):
                schema = _parsed(schema if config.schema_column else resolve(schema, folder).read_text("utf-8"))
            if isinstance(schema, Mapping):
                return schema
    return None


def _parsed(text: str) -> Any:
    try:
        return parse_json(text, strict=True)
    except ValueError:
        return None  # as above


def _instances(schema: Mapping[str, Any]) -> tuple[str, ...]:
    return _instances_of(json.dumps(schema, sort_keys=True))


@functools.lru_cache(maxsize=4096)
def _instances_of(schema: str) -> tuple[str, ...]:
    try:
        return tuple(smallest_instances(json.loads(schema), _MOST_INSTANCES))
    except ValueError:
        return ()  # as above


def _smallest(
    schemas: Sequence[Mapping[str, Any] | None], configs: Mapping[str, RewardConfig]
) -> Iterator[Completions]:
    """For every row the smallest instance of its schema, then the second smallest, and so on."""
    form = next((config.form for config in configs.values() if isinstance(config, ToolCallConfig)), CallForm.plain)
    found = [() if schema is None else _instances(schema) for schema in schemas]
    for rank in range(max(map(len, found), default=0)):
        texts = [texts[min(rank, len(texts) - 1)] if texts else None for texts in found]
        yield [None if text is None else written(json.loads(text), form) for text in texts]


def _one_tool(
    cases: Sequence[Case], schemas: Sequence[Mapping[str, Any] | None], configs: Mapping[str, RewardConfig]
) -> Iterator[Completions]:
    """Every allowed tool in turn, called for every row with the least that the row's schema asks for."""
    for config in configs.values():
        if isinstance(config, ToolCallConfig):
            tools = dict.fromkeys(tool for case in cases for tool in _tools(case, config))
            for tool in list(tools)[:_MOST_TOOLS]:
                yield [written(_least_call(tool, schema, config.form), config.form) for schema in schemas]


def _least_call(tool: str, schema: Mapping[str, Any] | None, form: CallForm) -> Any:
    tool_key, arguments_key = KEYS[form]
    asked = {
        "type": "object",
        "required": [tool_key, arguments_key],
        "properties": {tool_key: {"const": tool}, arguments_key: {"type": "object"}},
    }
    texts = _instances({**(schema or {}), "allOf": [*(schema or {}).get("allOf", ()), asked]})
    return json.loads(texts[0]) if texts else {tool_key: tool, arguments_key: {}}
