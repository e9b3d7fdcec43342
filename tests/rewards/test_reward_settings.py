"""What a reward set may say: every mistake is one message that starts with the key it is at."""

import functools
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

import conf
from conf.errors import ConfigError
from conf.loader import dump
from conf.rewards import load_rewards
from rewards.library import build
from rewards.scoring import RewardSet
from rewards.sources import reward_sources

N = {"type": "numeric"}
CALL = {"type": "tool_call", "tools": ["b"]}
CUSTOM = {"type": "custom", "path": "reward.py"}

MISTAKES: list[tuple[Any, str]] = [
    ({}, "reward: expected a mapping"),
    (None, "reward: expected a mapping"),
    ({"a": "numeric"}, "reward.a: needs a type, one of command, contains, custom, exact"),
    ({"a": {"type": "nummeric"}}, "reward.a: needs a type"),
    ({"a": {"type": ["numeric"]}}, "reward.a: needs a type"),
    ({"a": {**N, "tolerence": 1}}, "reward.a.tolerence: unknown key; did you mean 'tolerance'?"),
    ({"a": {**N, "tolerance": -1}}, "reward.a.tolerance: must be at least 0"),
    ({"a": {**N, "weight": "1"}}, "reward.a.weight: expected a number"),
    ({"a": {**N, "weight": float("nan")}}, "reward.a.weight: expected a finite number"),
    ({"a": {**N, "weight": 0}, "b": {**N, "weight": 0.0}}, "reward: every weight is zero"),
    ({"a b": N}, "reward.a b: a reward cannot be called that"),
    ({"std": N}, "reward.std: a reward cannot be called that"),
    ({"scores": N}, "reward.scores: a reward cannot be called that"),
    ({"a": {**N, "timeout": 5}}, "reward.a.timeout: unknown key"),
    ({"a": {**CUSTOM, "timeout": 0}}, "reward.a.timeout: must be above 0"),
    ({"a": {**CUSTOM, "args": {}}}, "reward.a.args: goes with function"),
    ({"1": N, 1: N}, "reward.1: two rewards are called '1'"),
    ({"a": {**N, "on_error": "score"}}, "reward.a.error_value: goes with on_error: score"),
    ({"a": {**N, "error_value": 0}}, "reward.a.error_value: goes with on_error: score"),
    ({"a": {**N, "on_error": "score", "error_value": 1e40}}, "reward.a.error_value: is too large to train on"),
    ({"a": {**N, "on_error": "ignore"}}, "reward.a.on_error: expected one of stop, score"),
    ({"a": {"type": "regex"}}, "reward.a.pattern: give either pattern"),
    ({"a": {"type": "regex", "pattern": "a", "pattern_column": "b"}}, "reward.a.pattern: give either pattern"),
    ({"a": {"type": "regex", "pattern": "", "pattern_column": "b"}}, "reward.a.pattern: give either pattern"),
    ({"a": {"type": "regex", "pattern": "(a"}}, "reward.a.pattern: '(a' is not a regular expression"),
    ({"a": {"type": "regex", "pattern": ""}}, "reward.a.pattern: is empty"),
    ({"a": {"type": "regex", "pattern": "a", "flags": ["i"]}}, "reward.a.flags[0]: expected one of ignorecase"),
    ({"a": {"type": "regex", "pattern": "a", "mode": "match"}}, "reward.a.mode: expected one of search, fullmatch"),
    ({"a": {"type": "keyword", "words": []}}, "reward.a.words: needs at least one word"),
    ({"a": {"type": "keyword", "words": ["a", " "]}}, "reward.a.words: needs at least one word"),
    ({"a": {"type": "keyword", "words": "please"}}, "reward.a.words: expected a list"),
    ({"a": {"type": "length"}}, "reward.a.max_chars: is required"),
    ({"a": {"type": "length", "max_chars": 0}}, "reward.a.max_chars: must be at least 1"),
    ({"a": {"type": "length", "min_chars": 5, "max_chars": 4}}, "reward.a.min_chars: must be at most max_chars (4)"),
    ({"a": {"type": "json", "schema": 3}}, "reward.a.schema: expected a JSON Schema"),
    ({"a": {"type": "json", "schema": {}, "schema_column": "s"}}, "reward.a.schema_column: stands in place"),
    ({"a": {"type": "json", "keys": ["a", "a"]}}, "reward.a.keys: names a key twice"),
    ({"a": {"type": "fields", "extra_penalty": -0.1}}, "reward.a.extra_penalty: must be at least 0"),
    ({"a": {"type": "tool_call"}}, "reward.a.tools: give either tools"),
    ({"a": {**CALL, "tools_column": "t"}}, "reward.a.tools: give either tools"),
    ({"a": {**CALL, "schema": {}, "schema_column": "s"}}, "reward.a.schema_column: stands in place"),
    ({"a": {**CALL, "schema": 3}}, "reward.a.schema: expected a JSON Schema"),
    ({"a": {**CALL, "arguments": []}}, "reward.a.arguments: names no argument"),
    ({"a": {**CALL, "arguments": ["b", "b"]}}, "reward.a.arguments: names no argument, or one twice"),
    ({"a": {**CALL, "form": "xml"}}, "reward.a.form: expected one of plain, tagged"),
    ({"a": {**CALL, "max_chars": 0}}, "reward.a.max_chars: must be at least 1"),
    ({"a": {**CALL, "points": {"parse": 1}}}, "reward.a.points.parse: unknown key; did you mean 'parses'?"),
    ({"a": {**CALL, "points": {"parses": float("inf")}}}, "reward.a.points.parses: expected a finite number"),
    ({"a": {"type": "math", "decimals": 16}}, "reward.a.decimals: must be at most 15"),
    ({"a": {"type": "custom"}}, "reward.a.path: give either"),
    ({"a": {"type": "custom", "path": "a.py", "function": "a.b"}}, "reward.a.path: give either"),
    ({"a": {"type": "custom", "function": "polite"}}, "reward.a.function: expected package.module.function"),
]


@pytest.mark.parametrize(("values", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistake_in_settings(values: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_rewards(values)
    assert str(error.value).startswith(message)


SCHEMA_MISTAKES: list[tuple[Any, str]] = [
    ({"type": "thing"}, "'thing' is not valid"),
    ({"pattern": "("}, "is not a 'regex'"),
    ({"$ref": "#"}, "refers to itself without end"),
    ({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}]}}}, "refers to itself without end"),
    ({"$ref": "https://example.org/schema.json"}, "leads nowhere; other documents are not fetched"),
    ({"properties": {"a": {"$ref": "https://example.org/schema.json"}}}, "leads nowhere"),
    ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "'#/$defs/b' leads nowhere"),
    ({"$schema": "https://example.org/dialect"}, "unknown $schema"),
    ({"maximum": 10**5000}, "integer string conversion"),
    ({"minimum": float("nan")}, "not JSON compliant"),
    (functools.reduce(lambda inner, _: {"not": inner}, range(5000), {}), "nested too deeply"),
    ({"const": yaml.safe_load("2024-01-15")}, "holds what JSON cannot"),
    ("missing.json", "missing.json: cannot be read"),
    ("broken.json", "broken.json: is not a valid JSON Schema"),
    ("list.json", "a JSON Schema is a mapping"),
]


@pytest.mark.parametrize(("schema", "message"), SCHEMA_MISTAKES, ids=[message for _, message in SCHEMA_MISTAKES])
@pytest.mark.parametrize("settings", [{"type": "json"}, {"type": "tool_call", "tools": ["a"]}], ids=lambda s: s["type"])
def test_mistake_in_a_schema(settings: dict[str, Any], schema: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"type": ', encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    configs = load_rewards({"form": {**settings, "schema": schema}})
    with pytest.raises(ConfigError) as error:
        RewardSet(configs, tmp_path)
    assert str(error.value).startswith("reward 'form': schema: ")
    assert message in str(error.value)


def test_a_schema_file_determines_a_tool_call_too(tmp_path: Path) -> None:
    (tmp_path / "call.json").write_text('{"type": "object"}', encoding="utf-8")
    configs = load_rewards({"call": {**CALL, "schema": "call.json"}})
    assert reward_sources(configs, tmp_path) == [tmp_path / "call.json"]
    RewardSet(configs, tmp_path)


def test_math_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "math_verify" else find_spec(name))
    with pytest.raises(ConfigError, match=r"type: math needs .* pip install \"ratchet\[math\]\""):
        build(load_rewards({"a": {"type": "math"}})["a"])


def test_settings_survive_being_stored() -> None:
    values = {
        "a": {"type": "regex", "pattern": "a", "flags": ["dotall"], "mode": "fullmatch", "weight": -0.5},
        "b": {"type": "json", "schema": {"type": "object"}, "keys": ["x"]},
        "d": {"type": "tool_call", "tools": ["x"], "form": "tagged", "points": {"parses": 0.5}, "task_checks": False},
        "c": {"type": "keyword", "words": ["x"], "mode": "none", "on_error": "score", "error_value": -1},
    }
    configs = load_rewards(values)
    assert load_rewards(dump(configs)) == configs


@pytest.mark.parametrize("file", sorted((Path(conf.__file__).parent / "reward").glob("*.yaml")), ids=lambda f: f.stem)
def test_packaged_reward_set(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    name = file.stem.removesuffix("_strict")  # a stricter set takes the place of the usual one
    assert text.startswith(f"# @package reward.{name}\n")
    if file.stem == "gym":
        pytest.importorskip("reasoning_gym", reason='needs "ratchet[gym]"')
    RewardSet(load_rewards(yaml.safe_load(text)), file.parent)
