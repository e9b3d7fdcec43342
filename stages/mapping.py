r"""From a source's columns to prompts, replies and references.

A mapping such as `prompt: question` names a column. Text that is no column's name is a template: `{question}` stands
for that column's value, `{{` and `}}` for literal braces, as in Python's format strings (without their format codes).
Text and numbers go into a template as they are, everything else as JSON. For `system`, text without any placeholder
is a constant; for the others it is a misspelt column, and an error.

A column that the configuration names must be there in every row; one that is used because it has the field's own name
(`prompt`, `response`, ...) may be missing in some. A null counts as missing.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conf.errors import UserError
from conf.schema import DataConfig
from stages.rows import Row
from stages.sources import Record

_FIELDS = ("prompt", "system", "messages", "response", "chosen", "rejected", "reference")
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class _Column:
    """A field that is a column; `required` when the configuration names it."""

    name: str
    required: bool

    def value(self, record: Record) -> Any:
        value = record.values.get(self.name)
        if value is None and self.required:
            raise UserError(f"{record.place}: has no value for {self.name!r}; it has {_listed(record.values)}")
        return value


@dataclass(frozen=True)
class _Template:
    """A field that is text with columns in it: literal texts, and between each two the column to insert."""

    texts: tuple[str, ...]
    columns: tuple[str, ...]

    def value(self, record: Record) -> str:
        inserted = [_as_text(_Column(column, required=True).value(record)) for column in self.columns]
        return "".join(text + value for text, value in zip(self.texts, [*inserted, ""], strict=True))


def map_rows(records: Sequence[Record], config: DataConfig) -> list[Row]:
    """Prepared rows, one for every record, in the same order.

    Raises:
        UserError: A mapping names a column that is not there, there is no prompt, or a value does not fit its field;
            names the row and the column.
    """
    columns = dict.fromkeys(column for record in records for column in record.values)
    fields = {name: _field(name, getattr(config, name), columns, config.source) for name in _FIELDS}
    _choose_prompt(fields, config, columns)
    return [_row(record, fields) for record in records]


def _field(name: str, mapping: str | None, columns: Iterable[str], source: str) -> _Column | _Template | None:
    if mapping is None:
        return _Column(name, required=False) if name in columns else None
    if mapping in columns:
        return _Column(mapping, required=True)
    if name == "messages" or (name != "system" and not _TOKEN.search(mapping)):
        raise UserError(f"{source}: there is no column {mapping!r} for {name!r}; columns: {_listed(columns)}")
    return _template(name, mapping, columns, source)


def _template(name: str, text: str, columns: Iterable[str], source: str) -> _Template:
    texts, inserted, end = [""], [], 0
    for token in _TOKEN.finditer(text):
        texts[-1] += text[end : token.start()]
        end = token.end()
        if token[0] in ("{{", "}}"):
            texts[-1] += token[0][0]
        elif token[1] in columns:
            inserted.append(token[1])
            texts.append("")
        else:
            what = "a single brace" if token[1] is None else f"{token[0]}, which is no column"
            raise UserError(
                f"{source}: the template for {name!r} has {what}; columns: {_listed(columns)} "
                "(write {{ and }} for braces that are meant literally)"
            )
    texts[-1] += text[end:]
    return _Template(tuple(texts), tuple(inserted))


def _choose_prompt(fields: dict[str, Any], config: DataConfig, columns: Iterable[str]) -> None:
    """Keep one of `prompt` and `messages`: what the configuration names beats what merely has the name."""
    given = [name for name in ("prompt", "messages") if fields[name] is not None]
    if len(given) == 2:
        given = [name for name in given if getattr(config, name) is not None]
        if len(given) != 1:
            raise UserError(f"{config.source}: has both 'prompt' and 'messages'; set the one to use")
    if not given:
        raise UserError(
            f"{config.source}: nothing says what the prompt is; set prompt (or messages) to a column or a template "
            f"over the columns: {_listed(columns)}"
        )
    fields["messages" if given == ["prompt"] else "prompt"] = None


def _row(record: Record, fields: Mapping[str, _Column | _Template | None]) -> Row:
    values: dict[str, Any] = {name: field.value(record) for name, field in fields.items() if field is not None}
    for name in ("prompt", "system", "response", "chosen", "rejected"):
        if values.get(name) is not None:
            values[name] = _as_reply(values[name], record, name)
    values["system"] = values.get("system") or None
    if "messages" in values:
        _split_conversation(values, record)
    elif not (values["prompt"] or "").strip():
        raise UserError(f"{record.place}: the prompt is empty")
    return Row(place=record.place.rpartition(", ")[2], **values, row=record.values)


def _split_conversation(values: dict[str, Any], record: Record) -> None:
    """Check a conversation; an assistant's message at its end is the reply."""
    messages = _messages(values["messages"], record)
    if messages[-1]["role"] == "assistant":
        if values.get("response") is not None:
            raise UserError(f"{record.place}: 'messages' ends with a reply, and there is a 'response' too; keep one")
        values["response"] = messages.pop()["content"]
    if not messages or messages[-1]["role"] != "user":
        raise UserError(f"{record.place}: 'messages' has no user message to reply to at its end")
    if values["system"] is not None and messages[0]["role"] == "system":
        raise UserError(f"{record.place}: 'messages' starts with a system message, and 'system' is given too; keep one")
    values["messages"] = messages


def _messages(value: Any, record: Record) -> list[dict[str, str]]:
    expected = f"expected a list of {{role, content}} with the roles {', '.join(_ROLES)}"
    if not isinstance(value, list) or not value:
        raise UserError(f"{record.place}: 'messages' is {_kind(value)}; {expected}")
    for number, message in enumerate(value, start=1):
        where = f"{record.place}: message {number} of 'messages'"
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise UserError(f"{where} has no text as content; {expected}")
        if message.get("role") not in _ROLES:
            raise UserError(f"{where} has the role {message.get('role')!r}; {expected}")
    return [{"role": message["role"], "content": message["content"]} for message in value]


def _as_reply(value: Any, record: Record, name: str) -> str:
    if isinstance(value, list | Mapping):
        raise UserError(
            f"{record.place}: {name!r} is {_kind(value)}, expected text; "
            f"a template such as '{{{name}}}' writes it as JSON"
        )
    return _as_text(value)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kind(value: Any) -> str:
    if value is None:
        return "missing"
    names = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__) if value != [] else "an empty list"


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(repr(column) for column in columns)
