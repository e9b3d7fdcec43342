"""Golden cases: `golden/<type>.json` says what each reward type gives, or with which error it fails. Add a row."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from conf.rewards import TYPES, load_rewards
from rewards.contract import Reward, RewardError, Sample, Value
from rewards.library import BUILDERS, FILE_BUILDERS, build
from rewards.scoring import RewardSet

GOLDEN = Path(__file__).parent / "golden"
FEWEST = {"numeric": 100, "json": 100, "tool_call": 80, "math": 60, "fields": 50}


def cases() -> list[Any]:
    return [
        pytest.param(file.stem, case, id=f"{file.stem}-{number}-{case['why']}")
        for file in sorted(GOLDEN.glob("*.json"))
        for number, case in enumerate(json.loads(file.read_text(encoding="utf-8")))
    ]


@functools.cache
def shared_reward(settings: str) -> Reward:
    """One closure for all cases of the same settings."""
    return build(load_rewards({"it": json.loads(settings)})["it"])


def outcome(kind: str, case: dict[str, Any], folders: pytest.TempPathFactory) -> Value | str:
    """The value, or the message of the error."""
    if kind == "gym":
        pytest.importorskip("reasoning_gym", reason='needs "ratchet[gym]"')
    settings = {"type": kind, **case.get("settings", {})}
    sample = Sample(case.get("prompt", ""), case["completion"], case.get("reference"), case.get("row", {}))
    if "source" in case:
        return custom_outcome(case["source"], settings, sample, folders.mktemp("custom"))
    try:
        return shared_reward(json.dumps(settings))(sample)
    except RewardError as error:
        return str(error)


def custom_outcome(source: str, settings: dict[str, Any], sample: Sample, folder: Path) -> Value | str:
    """By way of a reward set, which checks what the function returns."""
    (folder / "reward.py").write_text(source, encoding="utf-8")
    rewards = RewardSet(load_rewards({"it": {**settings, "path": "reward.py"}}), folder)
    score = rewards.score(sample.prompt, sample.completion, sample.reference, sample.row)
    return score.errors["it"] if score.errors else Value(score.values["it"], score.explanations["it"])


@pytest.mark.parametrize(("kind", "case"), cases())
def test_golden_case(kind: str, case: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    result = outcome(kind, case, tmp_path_factory)
    if "error" in case:
        assert isinstance(result, str) and case["error"] in result
    else:
        assert isinstance(result, Value), result
        assert result.value == pytest.approx(case["value"], abs=1e-12)
        assert result.explanation


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_every_type_has_a_function_and_golden_cases(kind: str) -> None:
    assert kind in {**BUILDERS, **FILE_BUILDERS}
    assert len(json.loads((GOLDEN / f"{kind}.json").read_text(encoding="utf-8"))) >= FEWEST.get(kind, 12)


def test_every_case_has_a_reason_and_one_outcome() -> None:
    for parameters in cases():
        kind, case = parameters.values
        assert case["why"].strip(), (kind, case)
        assert ("value" in case) != ("error" in case), (kind, case)


TOOL_CALL = {"type": "tool_call", "tools": ["lookup_order", "handoff"], "arguments": ["order_id"]}
TERMS = [
    ("", {"unparseable": -1.0}, "unparseable -1 (Expecting value"),
    ("{}", {"parses": 0.2, "invalid": -0.5}, "parses +0.2, invalid -0.5 ($: 'tool' is a required property)"),
    (
        '{"tool": "refund", "args": {}}',
        {"parses": 0.2, "valid": 0.3, "invented_tool": -0.5},
        "parses +0.2, valid +0.3, invented tool -0.5 ('refund'), expected arguments +0 (wrong: order_id)",
    ),
    (
        '{"tool": "lookup_order", "args": {"order_id": "1"}}',
        {"parses": 0.2, "valid": 0.3, "known_tool": 0.2, "expected_tool": 0.2, "expected_arguments": 0.1},
        "parses +0.2, valid +0.3, known tool +0.2, expected tool +0.2, expected arguments +0.1",
    ),
]


@pytest.mark.parametrize(("completion", "terms", "explanation"), TERMS)
def test_a_tool_call_names_the_terms_that_count(completion: str, terms: dict[str, float], explanation: str) -> None:
    reward = build(load_rewards({"it": TOOL_CALL})["it"])
    row = {"schema": {"required": ["tool", "args"]}, "expected": {"tool": "lookup_order", "order_id": "1"}}
    value = reward(Sample("", completion, None, row))
    assert value.terms == terms
    assert value.value == pytest.approx(sum(terms.values()))
    assert value.explanation.startswith(explanation)
