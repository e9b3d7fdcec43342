"""Extraction: documents say what their fields say, and the rewards cannot be had without reading them."""

import datetime
import json
import re
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import conf
from conf.rewards import load_rewards
from conf.schema import ModelConfig
from rewards.examples.extraction import absence, checksum
from rewards.scoring import RewardSet
from stages.generators.extraction import extraction
from stages.rows import Row

ROWS = list(extraction(rows=2400, seed=7))
DATE_FORMS = (
    (r"\d{4}-\d\d-\d\d", "%Y-%m-%d"), (r"\d{4}/\d\d/\d\d", "%Y/%m/%d"), (r"\d\d/\d\d/\d{4}", "%m/%d/%Y"),
    (r"\d\d\.\d\d\.\d{4}", "%d.%m.%Y"), (r"[A-Z][a-z]{3,} \d+, \d{4}", "%B %d, %Y"),
    (r"\d+ [A-Z][a-z]{3,} \d{4}", "%d %B %Y"), (r"\b[A-Z][a-z]{2} \d+, \d{4}", "%b %d, %Y"),
    (r"\d+ [A-Z][a-z]{2} \d{4}", "%d %b %Y"),
)  # fmt: skip


def dates_in(document: str) -> set[str]:
    """Every date a reader finds, as ISO text; May is both a month's name and its abbreviation."""
    return {
        datetime.datetime.strptime(text, form).date().isoformat()
        for pattern, form in DATE_FORMS
        for text in re.findall(pattern, document)
    }


def test_documents_are_many_different_and_of_every_kind() -> None:
    assert len({row["document"] for row in ROWS}) == 2400
    assert min(Counter(row["kind"] for row in ROWS).values()) > 600
    assert len({re.sub(r"\d", "0", row["document"]) for row in ROWS}) > 2000, "digits alone make no new document"
    for symbol in ("$", "€", "£", "CHF", "USD"):
        assert sum(symbol in row["document"] for row in ROWS) > 100


def test_a_few_documents_lack_a_field() -> None:
    lacking = Counter(name for row in ROWS for name, value in row["fields"].items() if value is None)
    assert set(lacking) == {"number", "sender", "date"}
    assert 0.25 < sum(lacking.values()) / 2400 < 0.35 and min(lacking.values()) > 150


def test_the_fields_follow_from_the_document() -> None:
    senders = {row["fields"]["sender"] for row in ROWS} - {None}
    for row in ROWS:
        document, fields = row["document"], row["fields"]
        assert dates_in(document) == ({fields["date"]} if fields["date"] else set()), document
        assert {sender for sender in senders if sender in document} == {fields["sender"]} - {None}, document
        if fields["number"] is None:
            assert set(re.findall(r"(?<!\d)\d{4}(?!\d)", document)) <= {"2026"}, document
        else:
            assert document.count(fields["number"]) == 1, document
        amounts = re.findall(r"(?<![\d.])\d+[.,]\d\d(?!\.?\d)", document)
        assert Counter(float(amount.replace(",", ".")) for amount in amounts) == Counter(
            [*fields["lines"], fields["total"]]
        ), document
        assert round(sum(fields["lines"]), 2) == fields["total"] and 1 <= len(fields["lines"]) <= 3
        assert json.loads(row["response"]) == fields and list(json.loads(row["response"])) == list(fields)


@pytest.mark.slow
def test_prompt_and_reply_are_short(smollm2: Any) -> None:
    from stages.chat import prompt_ids, reply_ids
    from stages.models import load_tokenizer

    tokenizer, system = load_tokenizer(smollm2), settings("data")["system"]
    for row in ROWS[::6]:
        prompt = prompt_ids(tokenizer, ModelConfig(), Row(prompt=row["document"], system=system))
        reply = reply_ids(tokenizer, smollm2, row["response"])
        assert len(prompt) + len(reply) <= 220 and len(reply) <= settings("suite")["max_new_tokens"]


DOCUMENT = (
    "Invoice 2026-0643\nDate: 21.10.2026\nPhone 71749\nhelmet 47.90\n1 x kettle 66,90\nTotal: 114.80. Page 1 of 1"
)
SUMS = [
    ({"lines": [47.9, 66.9], "total": 114.8}, 1),
    ({"lines": [66.9, 47.9], "total": 114.8, "more": None}, 1),
    ({"lines": [47.9, 66.9], "total": 114.81}, 0),
    ({"lines": [47.9], "total": 47.9}, 0),
    ({"lines": [114.8], "total": 114.8}, 0),
    ({"lines": [57.4, 57.4], "total": 114.8}, 0),
    ({"lines": [1], "total": 1}, 0),
    ({"lines": [21.1], "total": 21.1}, 0),
    ({"lines": [], "total": 0}, 0),
    ({"lines": [47.9, 66.9], "total": None}, 0),
    ({"lines": [47.9, 66.9]}, 0),
    ({"lines": ["47.9", 66.9], "total": 114.8}, 0),
    ({"lines": [True, 113.8], "total": 114.8}, 0),
    ({"lines": 114.8, "total": 114.8}, 0),
    ({"lines": [1e300], "total": 1e300}, 0),
    ([47.9, 66.9, 114.8], 0),
]


@pytest.mark.parametrize(("reply", "value"), SUMS)
def test_checksum(reply: Any, value: int) -> None:
    assert checksum(json.dumps(reply), DOCUMENT) == value


REFERENCE = {"number": None, "sender": "Novak Tools", "total": 3.5}
ABSENCES = [
    ('{"number": null, "sender": "Novak Tools", "total": 3.5}', 1),
    ('{"number": null, "sender": "someone", "total": 4}', 1),
    ('{"number": "0643", "sender": "Novak Tools", "total": 3.5}', 0),
    ('{"number": null, "sender": null, "total": 3.5}', 0),
    ('{"sender": "Novak Tools", "total": 3.5}', 0),
    ('{"number": null, "sender": "Novak Tools", "total": 3.5, "date": null}', 0),
    ("{}", 0),
    ("null", 0),
    ("the number is not stated", 0),
]


@pytest.mark.parametrize(("completion", "value"), ABSENCES)
def test_absence(completion: str, value: int) -> None:
    assert absence(completion, REFERENCE) == value


def test_nothing_to_admit_where_everything_is_stated() -> None:
    assert absence('{"number": "1"}', {"number": "1"}) == absence('{"number": null}', {"number": "1"}) == 0


KEYS = ("number", "sender", "date", "lines", "total")
DEGENERATE: dict[str, Callable[[int], str]] = {
    "empty": lambda n: "",
    "{}": lambda n: "{}",
    "echo": lambda n: ROWS[n]["document"],
    "null for everything": lambda n: json.dumps(dict.fromkeys(KEYS)),
    "null and a constant sum": lambda n: json.dumps({**dict.fromkeys(KEYS), "lines": [1], "total": 1}),
    "the commonest reference": lambda n: Counter(row["response"] for row in ROWS).most_common(1)[0][0],
    "another row's reference": lambda n: ROWS[n - 1]["response"],
}


@pytest.fixture(scope="module")
def best() -> float:
    return mean_total(lambda n: ROWS[n]["response"])


def mean_total(policy: Callable[[int], str]) -> float:
    rewards = RewardSet(load_rewards(settings("reward")))
    some = range(0, 2400, 4)
    return statistics.fmean(
        rewards.require(ROWS[n]["document"], policy(n), ROWS[n]["fields"], ROWS[n]).total for n in some
    )


def settings(group: str) -> Any:
    return yaml.safe_load((Path(conf.__file__).parent / group / "extraction.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("policy", DEGENERATE)
def test_what_does_not_read_earns_next_to_nothing(policy: str, best: float) -> None:
    assert best > 1.3 and mean_total(DEGENERATE[policy]) < 0.1 * best


def test_an_invented_value_costs(best: float) -> None:
    invented = mean_total(lambda n: json.dumps({k: "x" if v is None else v for k, v in ROWS[n]["fields"].items()}))
    assert invented < 0.95 * best
