"""Finds the code in a reply: what stands in its code fences."""

import re
from collections.abc import Container

PYTHON = ("", "python", "py", "python3")
"""How a fence around Python is marked, or not at all."""

_FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})[ \t]*(?P<info>[^`\n]*)")


def last_code(text: str, languages: Container[str] | None = None) -> str:
    """What the last code fence holds, or the whole text when there is none.

    A fence that is never closed, as in a reply that was cut off, goes on to the end. A fence of another language does
    not count.

    Args:
        text: The reply.
        languages: How the fence may be marked, in lower case; None for any.
    """
    found, marks, lines, counts = text, "", list[str](), False
    for line in text.splitlines(keepends=True):
        fence = _FENCE.fullmatch(line.rstrip())
        if not marks and fence:
            language = fence["info"].split()[0].lower() if fence["info"].strip() else ""
            marks, lines, counts = fence["marks"], [], languages is None or language in languages
        elif fence and fence["marks"].startswith(marks) and not fence["info"]:
            found, marks = "".join(lines) if counts else found, ""
        elif marks:
            lines.append(line)
    return "".join(lines) if marks and counts else found
