"""Columns and templates become prompts, replies and references; a mapping that cannot work says why."""

from typing import Any

import pytest

from conf.errors import UserError
from conf.schema import DataConfig
from stages.mapping import map_rows
from stages.rows import Row
from stages.sources import Record

USER, REPLY = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
SYSTEM = {"role": "system", "content": "Be kind"}


def mapped(rows: list[dict[str, Any]], **mapping: str) -> list[Row]:
    records = [Record(f"rows.jsonl, line {number}", row) for number, row in enumerate(rows, start=1)]
    return map_rows(records, DataConfig(source="rows.jsonl", **mapping))


FIELDS = [
    # the columns of a row, the mapping, what the prepared row then has
    ({"q": "a"}, {"prompt": "q"}, {"prompt": "a"}),
    ({"q": "a", "b": "c"}, {"prompt": "{q}\n\n{b}!"}, {"prompt": "a\n\nc!"}),
    ({"q": "{b}", "b": "c"}, {"prompt": "{q}{b}"}, {"prompt": "{b}c"}),
    ({"q": "a"}, {"prompt": '{{"q": {q}}}'}, {"prompt": '{"q": a}'}),
    ({"first name": "Ada"}, {"prompt": "Dear {first name}"}, {"prompt": "Dear Ada"}),
    ({"{q}": "a"}, {"prompt": "{q}"}, {"prompt": "a"}),
    ({"n": 3, "f": 0.5, "t": True}, {"prompt": "{n} {f} {t}"}, {"prompt": "3 0.5 true"}),
    ({"l": [1, {"ü": 2}]}, {"prompt": "{l}"}, {"prompt": '[1, {"ü": 2}]'}),
    ({"prompt": "a", "response": "b", "reference": "c"}, {}, {"prompt": "a", "response": "b", "reference": "c"}),
    ({"prompt": "a", "chosen": "b", "rejected": "c"}, {}, {"prompt": "a", "chosen": "b", "rejected": "c"}),
    ({"prompt": "a", "r": 69}, {"response": "r", "reference": "r"}, {"response": "69", "reference": 69}),
    ({"prompt": "a", "r": {"k": 1}}, {"response": "{r}"}, {"response": '{"k": 1}'}),
    ({"prompt": "a", "r": {"k": 1}}, {"reference": "r"}, {"reference": {"k": 1}}),
    ({"prompt": "a", "r": 69}, {"reference": "= {r}"}, {"reference": "= 69"}),
    ({"prompt": "a", "r": 0}, {"reference": "r"}, {"reference": 0}),
    ({"prompt": "a"}, {"system": "Be brief."}, {"system": "Be brief."}),
    ({"prompt": "a", "t": "x"}, {"system": "Be {t}."}, {"system": "Be x."}),
    ({"prompt": "a", "t": "x"}, {"system": "t"}, {"system": "x"}),
    ({"prompt": "a", "system": ""}, {}, {"system": None}),
    ({"prompt": "a", "response": None}, {}, {"response": None}),
    ({"messages": [USER]}, {}, {"messages": [USER], "prompt": None, "response": None}),
    ({"messages": [SYSTEM, USER, REPLY]}, {}, {"messages": [SYSTEM, USER], "response": "Hello"}),
    ({"messages": [USER], "prompt": "a"}, {"messages": "messages"}, {"messages": [USER], "prompt": None}),
    ({"messages": [USER], "prompt": "a"}, {"prompt": "prompt"}, {"messages": None, "prompt": "a"}),
    ({"talk": [USER, REPLY, USER]}, {"messages": "talk"}, {"messages": [USER, REPLY, USER]}),
    ({"messages": [USER]}, {"system": "S"}, {"messages": [USER], "system": "S"}),
]


@pytest.mark.parametrize(("row", "mapping", "expected"), FIELDS)
def test_fields(row: dict[str, Any], mapping: dict[str, str], expected: dict[str, Any]) -> None:
    (got,) = mapped([row], **mapping)
    assert {name: getattr(got, name) for name in expected} == expected
    assert got.row == row, "every column travels along unchanged"


def test_rows_that_lack_an_implicit_column_stay_without_it() -> None:
    first, second = mapped([{"prompt": "a", "response": "b", "x": 1}, {"prompt": "c"}])
    assert (first.response, second.response) == ("b", None)
    assert second.row == {"prompt": "c"}


P = {"prompt": "a"}
ERRORS = [
    # rows, mapping, parts of the message
    ([{"q": "a", "b": 1}], {}, ["prompt", "'q', 'b'"]),
    ([{"q": "a", "b": 1}], {"prompt": "question"}, ["'question'", "'prompt'", "'q', 'b'"]),
    ([P], {"reference": "answer"}, ["'answer'", "'reference'", "'prompt'"]),
    ([P], {"messages": "talk"}, ["'talk'", "'messages'"]),
    ([P], {"prompt": "{body}"}, ["{body}", "no column", "'prompt'"]),
    ([P], {"prompt": "{prompt!r}"}, ["{prompt!r}", "no column"]),
    ([P], {"system": 'Use {"tool": 1}'}, ["'system'", '{"tool": 1}', "{{"]),
    ([P], {"system": "a } b"}, ["'system'", "single brace"]),
    ([P], {"system": "{{}"}, ["'system'", "single brace"]),
    ([P, {"x": 1}], {"prompt": "prompt"}, ["line 2", "'prompt'", "'x'"]),
    ([P, {"x": 1}], {"prompt": "{prompt}"}, ["line 2", "'prompt'", "'x'"]),
    ([{**P, "r": 1}, {**P, "r": None}], {"reference": "r"}, ["line 2", "'r'"]),
    ([P, {"prompt": " "}], {}, ["line 2", "prompt is empty"]),
    ([P, {"x": 1}], {}, ["line 2", "prompt is empty"]),
    ([{**P, "response": [REPLY]}], {}, ["line 1", "'response'", "a list", "{response}"]),
    ([{**P, "messages": [USER]}], {}, ["both 'prompt' and 'messages'"]),
    ([{**P, "messages": [USER]}], {"prompt": "prompt", "messages": "messages"}, ["both 'prompt' and 'messages'"]),
    ([{"messages": "Hi"}], {}, ["line 1", "'messages' is text", "role"]),
    ([{"messages": [USER]}, {"messages": []}], {}, ["line 2", "an empty list"]),
    ([{"messages": [USER]}, {"x": 1}], {}, ["line 2", "'messages' is missing"]),
    ([{"messages": [USER, "Hi"]}], {}, ["message 2", "no text"]),
    ([{"messages": [{"role": "user", "content": None}]}], {}, ["message 1", "no text"]),
    ([{"messages": [{"role": "human", "content": "Hi"}]}], {}, ["message 1", "'human'", "system, user, assistant"]),
    ([{"messages": [SYSTEM]}], {}, ["no user message"]),
    ([{"messages": [REPLY]}], {}, ["no user message"]),
    ([{"messages": [USER, REPLY], "response": "x"}], {}, ["'response' too"]),
    ([{"messages": [SYSTEM, USER]}], {"system": "x"}, ["'system' is given too"]),
]


@pytest.mark.parametrize(("rows", "mapping", "parts"), ERRORS)
def test_errors(rows: list[dict[str, Any]], mapping: dict[str, str], parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        mapped(rows, **mapping)
    message = str(caught.value)
    assert message.startswith("rows.jsonl"), message
    assert all(part in message for part in parts), message
