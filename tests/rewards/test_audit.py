"""The audit of rewards: what each policy answers, what is said of it, and what the smallest JSON is."""

import json

import jsonschema
import pytest

from conf.errors import ConfigError
from conf.loader import load
from conf.measuring import AUDIT_POLICIES, AuditConfig
from conf.rewards import load_rewards
from rewards.audit import audit
from rewards.contract import RewardError
from rewards.instances import smallest_instances
from rewards.policies import Case, policies

CALL = {"type": "object", "required": ["tool", "args"]}
TOOL_CALL = {"type": "tool_call", "tools": ["lookup", "handoff"]}


def cases(*references, **row):
    return [Case(f"question {number}?", reference, row) for number, reference in enumerate(references, start=1)]


def audited(rows, rewards, **settings):
    return audit(rows, load_rewards(rewards), AuditConfig(**settings))


def findings(found):
    return {finding.policy: finding for finding in found.findings}


def completions(rows, rewards=None, limit=10):
    configs = load_rewards(rewards or {"exact": {"type": "exact"}})
    return policies(rows, [None if case.reference is None else str(case.reference) for case in rows], configs, limit)


def test_every_policy_has_a_name_that_can_be_acknowledged():
    assert set(completions(cases("a"))) == set(AUDIT_POLICIES)


def test_what_the_policies_answer():
    answers = completions(cases("a", "b", "b", "c"), limit=2)
    assert answers["empty"] == [[""] * 4]
    assert answers["whitespace"][0][0].strip() == "" != answers["whitespace"][0][0]
    assert answers["empty_object"] == [["{}"] * 4]
    assert answers["prompt"] == [["question"] * 4]  # held to 2 tokens of 4 characters
    assert len(answers["padding"][0][0]) == 8
    assert answers["commonest_reference"] == [["b"] * 4]
    assert answers["best_constant"] == [["b"] * 4, ["a"] * 4, ["c"] * 4]
    assert answers["all_references"] == [["b\na\nc"] * 4]
    assert answers["other_reference"] == [["b", "c", "c", "a"]]
    assert answers["smallest_instance"] == answers["one_tool"] == []


def test_a_listing_of_references_is_as_long_as_a_completion_can_be():
    rows = cases(*(f"answer {number}" for number in range(50)))
    text = completions(rows, limit=10)["all_references"][0][0]
    assert text == "answer 0\nanswer 1\nanswer 2\nanswer 3" and len(text) <= 40


def test_rows_without_references_leave_their_policies_out():
    answers = completions(cases(None, None))
    absent = {name for name, several in answers.items() if not several}
    assert absent == {
        *("commonest_reference", "best_constant", "all_references", "other_reference"),
        *("smallest_instance", "one_tool"),
    }


def test_contains_pays_a_listing_of_few_answers():
    found = audited(cases(*["yes", "no"] * 10), {"right": {"type": "contains"}})
    assert found.stops
    assert {name for name, finding in findings(found).items() if finding.verdict == "stop"} == {"all_references"}
    assert findings(found)["commonest_reference"].verdict == "warning"  # half of the answers, exactly
    assert findings(found)["commonest_reference"].share == pytest.approx(0.5)


def test_an_acknowledged_finding_is_shown_and_does_not_stop():
    found = audited(cases(*["yes", "no"] * 10), {"right": {"type": "contains"}}, allow=["all_references"])
    listing = findings(found)["all_references"]
    assert (listing.verdict, listing.acknowledged, found.stops) == ("stop", True, False)


def test_the_thresholds_are_configuration():
    rows, rewards = cases(*["yes"] * 6, *["no"] * 4), {"right": {"type": "exact"}}
    verdicts = [
        findings(audited(rows, rewards, warn=warn, stop=stop))["commonest_reference"].verdict
        for warn, stop in ((0.61, 0.9), (0.6, 0.9), (0.3, 0.6))
    ]
    assert verdicts == ["fine", "warning", "stop"]


def test_an_unknown_policy_is_refused_with_the_near_one():
    with pytest.raises(ConfigError, match=r"audit.allow: there is no policy 'emtpy'; did you mean 'empty'\? policies:"):
        load(AuditConfig, {"allow": ["emtpy"]}, "audit")


def test_a_reference_that_earns_nothing_stops():
    found = audited(cases("one", "two"), {"digits": {"type": "regex", "pattern": "[0-9]"}})
    assert found.stops and found.reference.verdict == "stop"
    assert "the right answers earn nothing" in found.reference.reason
    assert all(finding.share is None for finding in found.findings)  # a share of nothing says nothing
    assert not audited(cases("one", "two"), {"d": {"type": "regex", "pattern": "[0-9]"}}, allow=["reference"]).stops


def test_a_policy_that_beats_the_reference_is_named_whatever_the_thresholds():
    rewards = {"right": {"type": "exact"}, "long": {"type": "length", "min_chars": 40, "weight": 3}}
    found = audited(cases("a", "b"), rewards, stop=100)
    assert found.stops and found.reference.reason.startswith("padding earns 1.93")
    assert not audited(cases("a", "b"), rewards, stop=100, allow=["padding"]).stops


def test_the_form_of_the_right_answers_is_the_one_that_the_rewards_mean():
    thought = [Case("1 + 1?", 2, {}, "One and one is 2"), Case("2 + 3?", 5, {}, "It makes 5")]
    assert audited(thought, {"exact": {"type": "exact"}}).reference.best.completion == "2"
    reasoned = {"exact": {"type": "numeric"}, "long": {"type": "length", "min_chars": 10}}
    assert audited(thought, reasoned).reference.best.completion == "One and one is 2"
    fields = [Case("x", None, {"fields": {"total": 3, "name": "é"}})]
    right = audited(fields, {"fields": {"type": "fields", "column": "fields"}}).reference
    assert (right.mean, right.best.completion) == (1.0, '{"total": 3, "name": "é"}')


def test_without_references_the_yardstick_is_the_largest_total_there_can_be():
    rewards = {"short": {"type": "length", "max_chars": 9}, "word": {"type": "keyword", "words": ["hi"], "weight": 3}}
    found = audited(cases(None, None), {**rewards, "no": {"type": "regex", "pattern": "x", "weight": -2}})
    assert (found.reference, found.largest, found.stops) == (None, 4, False)
    assert findings(found)["empty"].share == pytest.approx(0.25)
    stopped = audited(cases(None), {"short": {"type": "length", "max_chars": 9}})
    assert findings(stopped)["empty"].verdict == "stop"


def test_where_no_range_is_known_nothing_is_judged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def reward(completion):\n    return 5\n")
    found = audited(cases(None), {"mine": {"type": "custom", "path": "mine.py"}})
    assert (found.largest, found.stops) == (None, False)
    assert {finding.verdict for finding in found.findings} == {"fine"}
    assert findings(found)["empty"].mean == 5


def test_a_reward_that_fails_names_policy_and_row():
    with pytest.raises(RewardError, match=r"training row 2, policy .*: reward 'right' failed: the reference"):
        audited(cases("a", None), {"right": {"type": "exact"}})
    found = audited(cases("a", None), {"right": {"type": "exact", "on_error": "score", "error_value": 0}})
    assert found.failed["right"] > 0 and found.reference.rows == 1


def tool_rows():
    expected = [("lookup", {"id": "7"}), ("lookup", {"id": "8"}), ("handoff", {}), ("handoff", {})]
    return [
        Case("caller", None, {"schema": CALL, "expected": {"tool": tool, **arguments}}) for tool, arguments in expected
    ]


def test_one_tool_for_everything_and_the_terms_that_pay_it():
    found = audited(tool_rows(), {"call": TOOL_CALL})
    assert found.reference.best.completion.startswith('{"tool": ')  # written from the expected calls
    finding = findings(found)["one_tool"]
    assert finding.best.completion == '{"tool": "handoff", "args": {}}'
    assert finding.mean == pytest.approx((0.7 + 0.7 + 1.2 + 1.2) / 4)
    assert finding.earned["call.valid"] == pytest.approx(0.3)
    assert finding.earned["call.expected_tool"] == pytest.approx(0.1)
    assert sum(finding.earned.values()) == pytest.approx(finding.mean)
    assert (finding.best.row, finding.best.total) == (3, pytest.approx(1.2))
    assert findings(found)["smallest_instance"].best.completion == '{"tool": null, "args": {}}'  # the one that pays


def test_tagged_calls_are_written_in_their_tags():
    rows = [Case("caller", None, {"schema": {"type": "object"}, "expected": {"tool": "lookup", "id": "7"}})]
    found = audited(rows, {"call": {**TOOL_CALL, "form": "tagged"}})
    assert found.reference.mean == pytest.approx(1.0)
    assert findings(found)["one_tool"].best.completion == '<tool_call>{"name": "lookup", "arguments": {}}</tool_call>'


SCHEMAS = [
    ({"type": "object"}, "{}"),
    ({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "minimum": 3}}}, '{"a": 3}'),
    ({"type": "array", "minItems": 2, "items": {"enum": ["yes", "no"]}}, '["no", "no"]'),
    ({"type": "string", "minLength": 3}, '"xxx"'),
    ({"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"}, '"2000-01-01"'),
    ({"type": "number", "exclusiveMinimum": 0.2, "maximum": 0.9}, None),
    ({"const": {"a": 1}}, '{"a": 1}'),
    ({"type": ["null", "string"], "minLength": 9}, "null"),
    ({"allOf": [{"type": "object", "required": ["a"]}, {"properties": {"a": {"const": 5}}}]}, '{"a": 5}'),
    ({"type": "object", "minProperties": 1, "properties": {"key": {"type": "boolean"}}}, '{"key": true}'),
    ({"$ref": "#/$defs/id", "$defs": {"id": {"type": "integer", "multipleOf": 7, "minimum": 8}}}, "14"),
    (
        {
            "oneOf": [
                {"type": "object", "required": ["tool", "order"], "properties": {"tool": {"const": "lookup"}}},
                {"type": "object", "required": ["tool"], "properties": {"tool": {"const": "handoff"}}},
            ]
        },
        '{"tool": "handoff"}',
    ),
]


@pytest.mark.parametrize(("schema", "smallest"), SCHEMAS, ids=[str(schema) for schema, _ in SCHEMAS])
def test_the_smallest_instance_of_a_schema(schema, smallest):
    found = smallest_instances(schema, 5)
    assert found and found == sorted(found, key=len)
    assert smallest is None or len(found[0]) == len(smallest), found
    for text in found:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("schema", [{"not": {}}, {"type": "string", "pattern": "^qqq+$"}, {"enum": []}], ids=str)
def test_where_none_is_found_there_is_none(schema):
    assert smallest_instances(schema, 5) == []


def test_a_schema_that_contains_itself_ends():
    node = {"type": "object", "required": ["next"], "properties": {"next": {"anyOf": [{"$ref": "#"}, {"const": 0}]}}}
    assert smallest_instances(node, 1) == ['{"next": 0}']
