"""The strict loader: what it accepts, and the one clear message for everything else."""

import ast
import dataclasses
from pathlib import Path

import pytest

import conf.hardware
import conf.schema
from conf.errors import ConfigError
from conf.loader import dump, load
from conf.schema import RatchetConfig
from conf.training import LoraConfig, ReinforceConfig

BAD = [
    ({"betta": 1}, "reinforce.betta: unknown key; did you mean 'beta'?"),
    ({"num_generations": 4}, "Ratchet calls this 'group_size'"),
    ({"beta": "high"}, "reinforce.beta: expected a number, got text ('high')"),
    ({"beta": -1}, "reinforce.beta: must be at least 0, got -1"),
    ({"beta": float("nan")}, "reinforce.beta: expected a finite number"),
    ({"temperature": 0}, "reinforce.temperature: must be above 0, got 0"),
    ({"group_size": 1}, "reinforce.group_size: must be at least 2, got 1"),
    ({"group_size": True}, "reinforce.group_size: expected a whole number, got true or false"),
    ({"group_size": 4.5}, "reinforce.group_size: expected a whole number, got a number (4.5)"),
    ({"mask_truncated": 1}, "reinforce.mask_truncated: expected true or false"),
    ({"schedule": "linaer"}, "reinforce.schedule: expected one of linear, cosine,"),
    ({"lora": {"r": 0}}, "reinforce.lora.r: must be at least 1, got 0"),
    ({"lora": {"dropout": 1.0}}, "reinforce.lora.dropout: must be below 1, got 1.0"),
    ({"lora": {"target_modules": "q_proj"}}, "reinforce.lora.target_modules: expected a list, got text"),
    ({"lora": 16}, "reinforce.lora: expected a mapping, got a whole number (16)"),
    ({"learning_rate": None}, "reinforce.learning_rate: expected a number, got nothing"),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=[str(values) for values, _ in BAD])
def test_a_bad_value_is_named(values, message):
    with pytest.raises(ConfigError) as caught:
        load(ReinforceConfig, values, "reinforce")
    assert message in str(caught.value)


def test_an_enum_is_written_by_name_and_others_are_listed():
    assert load(RatchetConfig, {"hardware": {"dtype": "bfloat16"}}).hardware.dtype is conf.hardware.Dtype.bfloat16
    with pytest.raises(ConfigError, match=r"hardware.dtype: expected one of auto, float32, bfloat16, float16"):
        load(RatchetConfig, {"hardware": {"dtype": "int8"}})


def test_whole_numbers_do_for_numbers():
    loaded = load(LoraConfig, {"alpha": 8})
    assert loaded.alpha == 8.0
    assert isinstance(loaded.alpha, float)


def test_dump_and_load_are_inverse():
    config = load(RatchetConfig, {"sft": {"max_steps": 3}, "hardware": {"device": "cpu"}, "data": {"x": {"a": [1]}}})
    assert load(RatchetConfig, dump(config)) == config


def test_every_field_of_the_configuration_is_documented():
    """A string literal must follow every annotated field of every dataclass in conf/."""
    undocumented = []
    for path in Path(conf.schema.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            frozen = isinstance(node, ast.ClassDef) and any(isinstance(item, ast.Call) for item in node.decorator_list)
            if not isinstance(node, ast.ClassDef) or frozen or not node.decorator_list:
                continue
            for item, following in zip(node.body, [*node.body[1:], None], strict=True):
                documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                if isinstance(item, ast.AnnAssign) and not documented:
                    undocumented.append(f"{path.name}:{item.lineno}")
    assert undocumented == []


def test_paths_names_and_tracking_do_not_change_an_outcome():
    free = {f.name for f in dataclasses.fields(RatchetConfig) if not f.metadata.get("outcome", True)}
    assert free == {"name", "runs_dir"}
