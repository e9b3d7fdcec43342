"""What holds for every text: values are finite and within the stated range, and the reference itself scores best."""

import functools
import json
import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conf.rewards import load_rewards
from rewards.contract import Reward, Sample
from rewards.library import build
from rewards.number import last_number
from rewards.parsing import equal_json, parse_json
from rewards.text import fold, normalise

few = settings(
    max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)

NUMERALS = ["42", "-", "\u2212", "1,234", ".5", "1e9", "1e-7", "3/4", "/0", "%", "$", "9" * 400]
MARKS = [*"{}[]\"',:", "```json\n", "\n```", "<tool_call>", "</tool_call>", "\\boxed{", "\\frac"]
WORDS = ['{"a": 1}', '{"tool": "x", "args": {}}', "null", "NaN", "yes", "Yes.", " ", "\n", "\ufeff", "ß", "ﬁ", "\ud800"]
PIECES = st.sampled_from([*NUMERALS, *MARKS, *WORDS])
TEXT = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=12).map("".join))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(-1e12, 1e12) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
OBJECT = st.dictionaries(st.text(min_size=1, max_size=6), JSON, min_size=1, max_size=4)
NUMBERS = st.integers(-(10**30), 10**30) | st.floats(-1e200, 1e200)

CALL = {"type": "tool_call", "tools": ["x", "handoff"], "schema": {"type": "object"}}
CALL_RANGE = (-1.0, 1.2)
RANGES: dict[str, tuple[dict[str, Any], tuple[float, float]]] = {
    "exact": ({"type": "exact"}, (0, 1)),
    "contains": ({"type": "contains"}, (0, 1)),
    "numeric": ({"type": "numeric"}, (0, 1)),
    "overlap": ({"type": "overlap"}, (0, 1)),
    "regex": ({"type": "regex", "pattern": r"\d+"}, (0, 1)),
    "json": ({"type": "json", "keys": ["a", "b"], "schema": {"type": "object"}}, (0, 1)),
    "fields": ({"type": "fields", "column": "fields", "extra_penalty": 0.3}, (0, 1)),
    "length": ({"type": "length", "min_chars": 3, "max_chars": 12}, (0, 1)),
    "keyword": ({"type": "keyword", "words": ["yes", "42"], "mode": "all"}, (0, 1)),
    "tool_call": (CALL, CALL_RANGE),
    "math": ({"type": "math"}, (0, 1)),
    "tagged": ({**CALL, "form": "tagged"}, CALL_RANGE),
}
ROW = {"fields": {"a": 1, "b": "yes"}, "expected": {"tool": "handoff"}}


@functools.cache
def only(name: str) -> Reward:
    return build(load_rewards({"it": RANGES[name][0]})["it"])


def value(name: str, completion: str, reference: Any = "42", row: Any = ROW) -> float:
    return only(name)(Sample("", completion, reference, row)).value


@pytest.mark.parametrize("name", sorted(RANGES))
@few
@given(completion=TEXT)
def test_values_are_within_their_range(name: str, completion: str) -> None:
    least, most = RANGES[name][1]
    result = value(name, completion)
    assert math.isfinite(result)
    assert least <= result <= most
    assert result == value(name, completion), "pure"


@few
@given(text=TEXT)
def test_normalising_twice_is_normalising_once(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)
    assert fold(fold(text)) == fold(text)


@few
@given(reference=TEXT, other=TEXT)
def test_the_reference_scores_best_under_exact(reference: str, other: str) -> None:
    assert value("exact", reference, reference) == 1 >= value("exact", other, reference)


@few
@given(reference=TEXT.filter(fold), before=TEXT, after=TEXT)
def test_the_reference_scores_best_under_contains(reference: str, before: str, after: str) -> None:
    assert value("contains", reference, reference) == 1
    assert value("contains", f"{before} {reference} {after}", reference) == 1


@few
@given(reference=TEXT.filter(lambda text: isinstance(last_number(text), Fraction)))
def test_the_reference_scores_best_under_numeric(reference: str) -> None:
    assert value("numeric", reference, reference) == 1


@few
@given(over=st.integers(-(10**12), 10**12), under=st.integers(1, 10**6))
def test_the_reference_scores_best_under_math(over: int, under: int) -> None:
    for reference in (over, f"{over}/{under}", rf"$\frac{{{over}}}{{{under}}}$", f"{over}x + {under}"):
        for completion in (f"{reference}", rf"It is \boxed{{{reference}}}."):
            assert value("math", completion, reference) == 1
    assert value("math", rf"\boxed{{{over + 1}}}", over) == 0


@few
@given(number=NUMBERS, before=TEXT)
def test_a_number_as_python_writes_it_scores_best_under_numeric(number: float, before: str) -> None:
    assert value("numeric", f"{before} {number}", number) == 1
    assert value("numeric", str(number), str(number)) == 1


@few
@given(data=JSON)
def test_what_python_dumps_is_json(data: Any) -> None:
    dumped = json.dumps(data)
    assert equal_json(parse_json(dumped, strict=True), data)
    assert equal_json(parse_json(f"```json\n{dumped}\n```", strict=False), data)


@few
@given(reference=OBJECT)
def test_the_reference_scores_best_under_fields(reference: dict[str, Any]) -> None:
    for dumped in (json.dumps(reference), json.dumps(reference, ensure_ascii=False, indent=1)):
        assert value("fields", dumped, row={"fields": reference}) == 1


@few
@given(arguments=OBJECT.filter(lambda arguments: "tool" not in arguments))
def test_the_right_call_scores_best(arguments: dict[str, Any]) -> None:
    for tool, best in (("x", 1.0), ("handoff", 1.2)):
        row = {"expected": {"tool": tool, **arguments}}
        assert value("tool_call", json.dumps({"tool": tool, "args": arguments}), row=row) == best
        tagged = f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"
        assert value("tagged", tagged, row=row) == best
