"""The generated tasks: seeded, different prompts, right answers."""

import datetime
import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

import conf
from conf.errors import UserError
from conf.rewards import load_rewards
from rewards.scoring import RewardSet
from stages.generators.arithmetic import arithmetic
from stages.generators.extraction import extraction
from stages.generators.tool_calls import tool_calls


def test_additions_are_right_and_different_also_when_swapped() -> None:
    rows = list(arithmetic(rows=4000, seed=7))
    terms = [tuple(map(int, re.findall(r"\d+", row["question"]))) for row in rows]
    assert len({tuple(sorted(pair)) for pair in terms}) == 4000
    assert all(10 <= term <= 99 for pair in terms for term in pair)
    assert [row["answer"] for row in rows] == [str(sum(pair)) for pair in terms]
    assert re.fullmatch(r"What is \d\d \+ \d\d\? Reply with just the number\.", rows[0]["question"])


@pytest.mark.parametrize("generator", [arithmetic, tool_calls, extraction])
def test_the_seed_decides_and_more_rows_only_add(generator) -> None:
    rows = list(generator(rows=50, seed=1))
    assert rows == list(itertools.islice(generator(rows=200, seed=1), 50))
    assert rows != list(generator(rows=50, seed=2))


@pytest.mark.parametrize(
    ("generator", "arguments", "message"),
    [
        (arithmetic, {"rows": 46, "digits": 1}, "45 additions with 1 digits"),
        (arithmetic, {"rows": 5, "digits": 0}, "digits must be at least 1"),
        (arithmetic, {"rows": 0}, "not 0 rows"),
        (tool_calls, {"rows": 0}, "between 1 and"),
        (extraction, {"rows": 0}, "between 1 and"),
    ],
)
def test_impossible_arguments(generator, arguments, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(generator(seed=0, **arguments))


def test_all_one_digit_additions() -> None:
    assert len(list(arithmetic(rows=45, seed=0, digits=1))) == 45


def test_tool_calls_are_different_and_a_quarter_are_handoffs() -> None:
    rows = list(tool_calls(rows=2400, seed=7))
    assert len({row["caller"] for row in rows}) == 2400
    shares = Counter(row["expected"]["tool"] for row in rows)
    assert 0.20 < shares["handoff"] / 2400 < 0.30
    assert min(shares["lookup_order"], shares["reschedule"]) / 2400 > 0.30
    handoffs = [row for row in rows if row["expected"]["tool"] == "handoff"]
    with_number = sum(bool(re.search(r"\d{5}", row["caller"])) for row in handoffs)
    assert 0.3 < with_number / len(handoffs) < 0.7, "an order number must not give the tool away"


def test_the_right_call_follows_from_the_sentence() -> None:
    text = (Path(conf.__file__).parent / "reward" / "tool_calls.yaml").read_text(encoding="utf-8")
    rewards = RewardSet(load_rewards(yaml.safe_load(text)))
    for row in tool_calls(rows=2400, seed=7):
        call, expected = json.loads(row["response"]), row["expected"]
        assert {"tool": call["tool"], **call["args"]} == expected
        total = rewards.require(row["caller"], row["response"], None, row).total
        assert total == (1.2 if expected["tool"] == "handoff" else 1.0)
        if expected["tool"] != "handoff":
            assert re.findall(r"\d{5}", row["caller"]) == [expected["order_id"]]
        if "date" in expected:
            day = datetime.date.fromisoformat(expected["date"])
            assert day.year == 2026
            spoken = f"{day:%B}" in row["caller"] and re.search(rf"(?<!\d){day.day}(?!\d)", row["caller"])
            assert spoken or expected["date"] in row["caller"]
            weekdays = re.findall(r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b", row["caller"])
            assert weekdays in ([], [f"{day:%A}"])
