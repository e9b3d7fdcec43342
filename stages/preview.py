"""Rows as text for a person: the prompt exactly as the model sees it, and what else the stages get."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from stages.rows import Row

_WIDTH = 11
_LONGEST_COLUMN = 300
_REPLIES = ("response", "chosen", "rejected")


def preview(rows: Sequence[Row], prompts: Sequence[str], splits: Sequence[str]) -> str:
    """Format rows for reading.

    Args:
        rows: The rows to show.
        prompts: For each row the rendered prompt: the string that the tokenizer is given.
        splits: For each row the part it belongs to.

    Returns:
        A block for each row. Text is shown as it is; references and other columns as JSON, so that their types show.
    """
    blocks = zip(rows, prompts, splits, strict=True)
    return "\n\n".join(_block(number, *block) for number, block in enumerate(blocks, start=1))


def _block(number: int, row: Row, prompt: str, split: str) -> str:
    lines = [f"row {number} ({split})", *_entry("prompt", prompt)]
    for name in _REPLIES:
        if getattr(row, name) is not None:
            lines += _entry(name, getattr(row, name))
    if row.reference is not None:
        lines += _entry("reference", _json(row.reference))
    columns = "\n".join(f"{name}: {_json(value)}" for name, value in row.row.items())
    lines += _entry("columns", columns or "(none)")
    return "\n".join(lines)


def _entry(label: str, text: str) -> Iterable[str]:
    for line in text.split("\n"):
        yield f"  {label:<{_WIDTH}}| {line}"
        label = ""


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_COLUMN else f"{text[:_LONGEST_COLUMN]}... ({len(text)} characters)"
