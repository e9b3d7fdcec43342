r"""General abilities that post-training on a narrow task must not cost: facts, simple language, simple formats.

The questions stand in `general_tables`, written by hand and reviewed; nothing is drawn at random but their order. A row
carries the pattern that a right reply matches (`type: regex, pattern_column: pattern`): an answer on word boundaries,
before any other that the question offers, or a form such as numbers in order.
"""

import random
import re
from collections.abc import Iterable, Iterator, Sequence

from stages.generators.general_tables import CHOICES, DAYS, FACTS, FIELDS, LISTS, MONTHS, NOUNS, WORDS

_ORDER = 7
_ITEM = r"[^\W\d]+(?: [^\W\d]+)?"
"""One or two words."""

_Question = tuple[str, str, str, str]
"""Kind, question, answer, pattern."""


def general() -> Iterator[dict[str, str]]:
    """All questions, kinds mixed, always in the same order.

    Yields:
        `question`, `answer` (one right reply), `pattern` (what every right reply matches, in any case) and `kind`.
    """
    rows = [*_open(), *_chosen(), *_yes_or_no(), *_words_and_lists(), *_next()]
    random.Random(_ORDER).shuffle(rows)
    for kind, question, answer, pattern in rows:
        yield {"question": question, "answer": answer, "pattern": pattern, "kind": kind}


def _open() -> Iterator[_Question]:
    """Questions that do not name their answer."""
    for kind, (template, table) in {**FACTS, **WORDS}.items():
        for asked, right in _entries(table):
            answers = right.split("|")
            pattern = _words(answers)
            if kind == "symbol":
                pattern = rf"(?-i:{pattern})"
            elif kind == "amount":  # the first number counts
                pattern = rf"^\D*?{pattern}"
            yield kind, template.format(asked), answers[0], pattern


def _chosen() -> Iterator[_Question]:
    """Two answers named in the question: the right one must come first in the reply."""
    for kind in ("bigger", "kind", "color"):
        template, table = CHOICES[kind]
        for entry in _split(table):
            asked, _, choice = entry.rpartition("=")
            names = choice.split("/")
            right, wrong = sorted(names, key=lambda name: not name.startswith("*"))
            question = template.format(*filter(None, [asked]), *(name.strip("*") for name in names))
            yield kind, question, right.strip("*"), _first(_bare(right), _bare(wrong))


def _yes_or_no() -> Iterator[_Question]:
    template, table = CHOICES["yes_no"]
    for asked, answer in _entries(table):
        yield "yes_no", template.format(asked), answer, _first(answer, "no" if answer == "yes" else "yes")


def _words_and_lists() -> Iterator[_Question]:
    """A form to keep to, whatever it holds."""
    for noun in NOUNS:
        yield "repeat", f"Repeat this word: {noun}", noun, rf"^\W*{noun}\W*$"
        yield "letter", f"Which letter does the word {noun} start with?", noun[0].upper(), rf"\b{noun[0]}\b(?!')"
    for kinds, examples in _entries(LISTS):
        answer = examples.replace("|", ", ")
        yield (
            "list",
            f"Name three {kinds}, separated by commas.",
            answer,
            rf"{_ITEM}, {_ITEM}(?:, (?:and )?| and ){_ITEM}",
        )
    for key, value in _entries(FIELDS):
        answer = f'{{"{key}": "{value}"}}'
        yield "json", f"Write as JSON: {key} {value}", answer, rf'^\W*(?:json)?\s*{{\s*"{key}"\s*:\s*"{value}"'


def _next() -> Iterator[_Question]:
    """What follows in an order."""
    for unit, names in (("day", DAYS), ("month", MONTHS)):
        for name, after in zip(names, names[1:] + names[:1], strict=True):
            others = {*names} - {name, after}
            yield "next", f"Which {unit} comes after {name}?", after, _first(after, *others)
        for start in range(len(names) - 2):
            yield "continue", f"Continue this list: {', '.join(names[start : start + 2])},", *_continued(names[start:])
    for first, step in (*((first, 1) for first in range(1, 7)), (2, 2), (4, 2), (5, 5), (10, 10), (3, 3), (1, 2)):
        numbers = [str(first + step * place) for place in range(4)]
        yield "continue", f"What comes next? {', '.join(numbers[:3])},", *_continued(numbers, 3)
        yield "continue", f"What comes next? {', '.join(numbers[:0:-1])},", *_continued(numbers[::-1], 3)


def _continued(items: Sequence[str], given: int = 2) -> tuple[str, str]:
    """The item after the given ones, and its pattern: it comes first, or after all of them."""
    repeated = r"\W+(?:and )?".join(items[:given])
    spoken = r"(?:the next number (?:in the sequence )?is )?"
    return items[given], rf"^\W*{spoken}(?:{repeated}\W+(?:and )?)?{items[given]}\b"


def _words(answers: Iterable[str]) -> str:
    """One of the answers, on word boundaries."""
    return rf"\b(?:{'|'.join(map(re.escape, answers))})\b"


def _first(answer: str, *others: str) -> str:
    """The answer, none of the others before it, and no "or" after it: the question said that."""
    return rf"^(?:(?!{_words(sorted(others))}).)*?{_words([answer])}(?! or\b)"


def _bare(choice: str) -> str:
    """A choice without star and article."""
    return re.sub(r"^(?:an?|the) ", "", choice.strip("*"))


def _entries(table: str) -> Iterator[tuple[str, str]]:
    """What is asked, and what is right."""
    for entry in _split(table):
        asked, _, right = entry.partition("=")
        yield asked, right


def _split(table: str) -> list[str]:
    return " ".join(table.split()).split(", ")
