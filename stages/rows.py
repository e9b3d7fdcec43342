"""Prepared rows: the one form in which data reaches a stage, whatever file or hub it came from.

`stages.data` writes them, `pairs` derives new ones, and every other stage only reads them.
"""

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rewards.contract import Sample

_FIELDS = ("place", "prompt", "system", "messages", "response", "chosen", "rejected", "reference")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row. What the source lacks is None (`row` keeps exactly the columns that were there).

    Attributes:
        place: Where it stands in its source, for messages: `line 12` or `row 12`.
        prompt: The user's message, template already filled.
        system: The system message.
        messages: A whole conversation in place of `prompt`: a list of {"role", "content"}.
        response: The reply to learn.
        chosen: The better reply.
        rejected: The worse reply.
        reference: The right answer, with its own type.
        row: Every column of the source, with its own type, for the rewards.
    """

    place: str | None = None
    prompt: str | None = None
    system: str | None = None
    messages: list[dict[str, str]] | None = None
    response: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    reference: Any = None
    row: Mapping[str, Any] = field(default_factory=dict)

    @property
    def conversation(self) -> list[dict[str, str]]:
        """The messages before the reply: system (when there is one), then the conversation or the prompt."""
        messages = self.messages if self.messages is not None else [{"role": "user", "content": self.prompt or ""}]
        if self.system is None:
            return list(messages)
        return [{"role": "system", "content": self.system}, *messages]

    @property
    def prompt_text(self) -> str:
        """The prompt as one text, for rewards: the prompt itself, or the conversation's contents joined by newlines."""
        if self.prompt is not None:
            return self.prompt
        return "\n".join(message["content"] for message in self.messages or [])

    def sample(self, completion: str) -> Sample:
        """What the rewards judge when the reply to this row is `completion`."""
        return Sample(self.prompt_text, completion, self.reference, self.row)


def write_rows(path: Path, rows: Iterable[Row]) -> Path:
    """Write rows as JSON lines, leaving out what is None; returns the path."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            fields = {name: getattr(row, name) for name in _FIELDS if getattr(row, name) is not None}
            file.write(json.dumps({**fields, "row": dict(row.row)}, ensure_ascii=False) + "\n")
    return path


def read_rows(path: Path, most: int | None = None) -> list[Row]:
    """Read what `write_rows` wrote: the first `most` rows, or all."""
    with path.open(encoding="utf-8") as file:
        return [Row(**json.loads(line)) for line in itertools.islice(file, most)]
