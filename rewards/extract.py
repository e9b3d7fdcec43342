"""Finds the code in a reply: what stands in its code fences."""

import re
from collections.abc import Container

PYTHON = ("", "python", "py", "python3")
"""How a fence around Python is marked, or not at all."""

_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<marks>`{3,}|~{3,})[ \t]*(?P<info>[^`\n]*)")
_AFTER_TEXT = re.compile(r"(?P<indent>).*[^`~](?P<marks>`{3,}|~{3,})(?P<info>\w+)")
"""A fence that opens behind text, as in "The code: ```python"; only with a language, or it may close one."""


def last_code(text: str, languages: Container[str] | None = None) -> str:
    """What the last code fence holds, or the whole text when there is none.

    A fence that is never closed, as in a reply that was cut off, goes on to the end. A fence of another language does
    not count.

    Args:
        text: The reply.
        languages: How the fence may be marked, in lower case; None for any.
    """
    fences = [lines for language, lines in _fences(text) if languages is None or language in languages]
    return "".join(fences[-1]) if fences else text


def _fences(text: str) -> list[tuple[str, list[str]]]:
    """Language and lines of every fence, in order; lines lose the indentation that the fence has."""
    found: list[tuple[str, list[str]]] = []
    marks = indent = ""
    for line in text.splitlines(keepends=True):
        fence = _FENCE.fullmatch(line.rstrip())
        if marks and fence and fence["marks"].startswith(marks) and not fence["info"]:
            marks = ""
        elif marks:
            found[-1][1].append(line.removeprefix(indent))
        elif opening := fence or _AFTER_TEXT.fullmatch(line.rstrip()):
            marks, indent = opening["marks"], opening["indent"]
            found.append(((opening["info"].split() or [""])[0].lower(), []))
    return found
