"""What has changed is said in the words of whoever changed it."""

from typing import Any

import pytest

from flows.changes import changes

BEFORE: dict[str, Any] = {
    "reinforce": {"beta": 0.02, "lora": {"target_modules": ["all-linear"]}, "max_steps": None, "trainer": {}},
    "models": {"start": "a" * 64, "baseline": "b" * 64, "chain.sft": "c" * 64},
    "data": {"source": "d" * 64, "held_out": 0.2},
    "reward": {
        "mine": {
            "type": "custom",
            "weight": 1.0,
            "sources": {"path": {"reward.py": "e" * 64, "a/words.txt": "f" * 64}},
        },
        "form": {"type": "json", "sources": {}},
    },
    "reward_libraries": {"jsonschema": "4.1"},
    "suite": {
        "held": {"max_rows": 10, "rows": {"source": "0" * 64, "held_out": 0.2}, "reward": {"exact": {"weight": 1.0}}}
    },
    "seed": 0,
    "hardware": {"threads": 2},
    "model": {"chat_template": None},
    "code": "1" * 64,
    "libraries": {"torch": "2.13.0"},
}
CASES = [
    ("reinforce.beta", 0.1, "reinforce.beta 0.02 -> 0.1"),
    ("reinforce.max_steps", 3, "reinforce.max_steps null -> 3"),
    ("reinforce.lora.target_modules", ["q_proj"], 'reinforce.lora.target_modules ["all-linear"] -> ["q_proj"]'),
    ("reinforce.trainer.adam_beta2", 0.9, "reinforce.trainer.adam_beta2 added"),
    ("models.start", "x" * 64, "start changed (sft)"),
    ("models.baseline", "x" * 64, "baseline changed (base)"),
    ("models.chain#sft", "x" * 64, "chain.sft changed"),
    ("data.source", "x" * 64, "data changed"),
    ("data.held_out", 0.3, "held_out 0.2 -> 0.3"),
    ("data", {"train": "x" * 64}, "data changed"),
    ("data", None, "data changed"),
    ("reward.mine.weight", 2.0, "reward mine.weight 1.0 -> 2.0"),
    ("reward.mine.sources.path.reward#py", "x" * 64, "reward file reward.py changed"),
    ("reward.mine.sources.path.a/words#txt", None, "reward file a/words.txt removed"),
    ("reward.form.sources.schema", {"form.json": "x" * 64}, "files of reward form added"),
    ("reward.new", {"type": "exact", "weight": 1.0}, "reward new added"),
    ("reward_libraries.jsonschema", "4.2", "jsonschema 4.1 -> 4.2"),
    ("suite.held.max_rows", 3, "suite held: max_rows 10 -> 3"),
    ("suite.held.rows.source", "x" * 64, "suite held: data changed"),
    ("suite.held.reward.exact.weight", 2.0, "suite held: reward exact.weight 1.0 -> 2.0"),
    ("suite.more", {"max_rows": 1}, "suite more added"),
    ("seed", 1, "seed 0 -> 1"),
    ("hardware.threads", 1, "hardware.threads 2 -> 1"),
    ("model.chat_template", "{{ messages }} and then some more", "model.chat_template changed"),
    ("code", "x" * 64, "stage code changed"),
    ("libraries.torch", "2.14.0", "torch 2.13.0 -> 2.14.0"),
]


def altered(value: Any, path: list[str], new: Any) -> Any:
    """A copy of nested mappings with one value replaced, or taken away by None below a `sources`."""
    if not path:
        return new
    name = path[0].replace("#", ".")
    if new is None and "/" in name:
        return {key: item for key, item in value.items() if key != name}
    return {**value, name: altered(value.get(name), path[1:], new)}


@pytest.mark.parametrize(("key", "new", "words"), CASES, ids=[words for *_, words in CASES])
def test_every_kind_of_change_has_its_words(key, new, words):
    after = altered(BEFORE, key.split("."), new)
    assert changes(BEFORE, after, {"start": "sft", "baseline": "base"}) == [words]


def test_nothing_changed():
    assert changes(BEFORE, BEFORE, {}) == []


def test_several_changes_stand_in_the_order_of_the_inputs_each_once():
    after = {**BEFORE, "seed": 1, "data": {"train": "x" * 64, "select": "y" * 64}}
    assert changes(BEFORE, after, {}) == ["data changed", "seed 0 -> 1"]
