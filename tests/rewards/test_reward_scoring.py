"""Sums, failures, custom code and files of completions: what happens around the rewards themselves."""

import json
import math
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError, UserError
from conf.rewards import load_rewards
from rewards.contract import RewardError
from rewards.number import last_number
from rewards.scoring import RewardSet, score_file
from rewards.sources import reward_sources

FAILING = {"type": "numeric"}
"""Fails when there is no reference."""


def reward_set(folder: Path | None = None, **rewards: Any) -> RewardSet:
    return RewardSet(load_rewards(rewards), folder)


def test_total_is_the_weighted_sum() -> None:
    rewards = reward_set(
        right={"type": "numeric", "weight": 2.0},
        short={"type": "length", "max_chars": 10, "weight": 0.5},
        sorry={"type": "keyword", "words": ["sorry"], "weight": -0.25},
        watched={"type": "exact", "weight": 0},
    )
    score = rewards.score("1+1?", "sorry, it is 2!", "2", {})
    assert score.values == {"right": 1, "short": 0.5, "sorry": 1, "watched": 0}
    assert score.total == 2.0 * 1 + 0.5 * 0.5 - 0.25 * 1
    assert rewards.require("1+1?", "sorry, it is 2!", "2", {}) == score


def test_a_failure_is_never_a_score() -> None:
    rewards = reward_set(right=FAILING, short={"type": "length", "max_chars": 10})
    score = rewards.score("1+1?", "2", None, {})
    assert math.isnan(score.total)
    assert score.values == {"short": 1}
    assert score.errors == {"right": "the reference is missing"}
    with pytest.raises(RewardError, match=r"^row 3: reward 'right' failed: the reference is missing \[prompt '1\+1\?'"):
        rewards.require("1+1?", "2", None, {}, where="row 3")


def test_a_failure_may_be_given_a_stated_value() -> None:
    rewards = reward_set(right={**FAILING, "on_error": "score", "error_value": -1, "weight": 2}, any=FAILING | N_ZERO)
    score = rewards.require("", "2", None, {})
    assert score.total == -2
    assert score.values == {"right": -1, "any": 0}
    assert set(score.errors) == {"right", "any"}


N_ZERO = {"weight": 0, "on_error": "score", "error_value": 0}


def test_a_failure_of_weight_zero_is_a_failure() -> None:
    rewards = reward_set(watched={**FAILING, "weight": 0}, short={"type": "length", "max_chars": 10})
    with pytest.raises(RewardError, match="'watched'"):
        rewards.require("", "2", None, {})


def test_numbers_as_python_writes_them() -> None:
    random.seed(5)
    for _ in range(2000):
        whole = random.randint(-(10 ** random.randint(1, 15)), 10 ** random.randint(1, 15))
        real = random.uniform(-1, 1) * 10.0 ** random.randint(-12, 12)
        for number, text in [
            (whole, f"{whole}"),
            (whole, f"so it is {whole:,}."),
            (whole, f"{whole:+,}%"),
            (real, f"{real!r}"),
            (real, f"3 of {real:.17e}."),
            (real, f"7, {real:.17E}, right"),
            (float(f"{real:.4f}"), f"$ {real:,.4f}!"),
        ]:
            assert float(last_number(text)) == pytest.approx(number, rel=1e-15, abs=0), text  # type: ignore[arg-type]


@pytest.mark.parametrize("entry", ["__init__.py", "reward.py"])
def test_custom_folder(entry: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "helpers.py").write_text("FACTOR = 3\n", encoding="utf-8")
    (folder / entry).write_text(
        "from .helpers import FACTOR\ndef reward(completion): return FACTOR * len(completion)\n", encoding="utf-8"
    )
    settings = {"type": "custom", "path": "mine"}
    assert reward_set(tmp_path, mine=settings).score("", "ab", None, {}).values == {"mine": 6}
    (folder / "helpers.py").write_text("FACTOR = 50\n", encoding="utf-8")
    assert reward_set(tmp_path, mine=settings).score("", "ab", None, {}).values == {"mine": 100}, "edited code counts"


def test_two_custom_files_of_one_name(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "reward.py").write_text(f"def reward(): return {number}", encoding="utf-8")
    rewards = reward_set(
        tmp_path, a={"type": "custom", "path": "1/reward.py"}, b={"type": "custom", "path": str(tmp_path / "2")}
    )
    assert rewards.score("", "", None, {}).values == {"a": 1, "b": 2}


def test_custom_function_of_an_installed_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_rewards.py").write_text("def polite(completion): return 'please' in completion", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for function in ("some_rewards.polite", "some_rewards:polite"):
        settings = {"type": "custom", "function": function}
        assert reward_set(a=settings).score("", "please", None, {}).values == {"a": 1}
        assert reward_sources(load_rewards({"a": settings})) == [tmp_path / "some_rewards.py"]
    for function in ("some_rewards.rude", "no_such_rewards.polite"):
        with pytest.raises(ConfigError, match="reward 'a': function: "):
            reward_set(a={"type": "custom", "function": function})


def test_sources_are_the_files_that_determine_a_reward(tmp_path: Path) -> None:
    for name in ("file.py", "folder/reward.py", "folder/data/words.txt", "folder/__pycache__/x.pyc", "schema.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    rewards = {
        "file": {"type": "custom", "path": "file.py"},
        "folder": {"type": "custom", "path": "folder"},
        "form": {"type": "json", "schema": "schema.json"},
        "inline": {"type": "json", "schema": {}},
        "right": {"type": "numeric"},
    }
    found = [str(path.relative_to(tmp_path)) for path in reward_sources(load_rewards(rewards), tmp_path)]
    assert found == ["file.py", "folder/data/words.txt", "folder/reward.py", "schema.json"]
    (tmp_path / "schema.json").unlink()
    with pytest.raises(ConfigError, match="reward 'form': there is no "):
        reward_sources(load_rewards(rewards), tmp_path)


def test_sources_are_found_without_importing_the_packages_they_are_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_package" / "inner").mkdir(parents=True)
    (tmp_path / "slow_package" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "slow_package" / "inner" / "__init__.py").touch()
    (tmp_path / "slow_package" / "inner" / "words.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    for module, file in [("inner.words", "inner/words.py"), ("inner", "inner/__init__.py")]:
        settings = {"type": "custom", "function": f"slow_package.{module}.polite"}
        assert reward_sources(load_rewards({"a": settings})) == [tmp_path / "slow_package" / file]
    for module in ("slow_package.none", "slow_package.inner.words.none", "none.none"):
        assert not reward_sources(load_rewards({"a": {"type": "custom", "function": f"{module}.polite"}}))


def test_schema_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"required": ["a"]}', encoding="utf-8")
    rewards = reward_set(tmp_path, form={"type": "json", "schema": "schema.json"})
    assert rewards.score("", '{"a": 1}', None, {}).total == 1
    assert rewards.score("", '{"b": 1}', None, {}).total == 0


def test_file_of_completions(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"completion": "It is 69.", "prompt": "41 + 28?", "reference": 69, "unit": "m"}\n'
        "\n"
        '{"completion": "68 m", "reference": "69", "unit": "m"}\n'
        '{"completion": "69", "prompt": null}\n',
        encoding="utf-8",
    )
    (tmp_path / "unit.py").write_text(
        "def reward(completion, row): return completion.endswith(row['unit'])", encoding="utf-8"
    )
    rewards = reward_set(tmp_path, right={"type": "numeric"}, unit={"type": "custom", "path": "unit.py", "weight": 0.5})
    assert json.loads(json.dumps(list(score_file(rewards, rows)), allow_nan=False)) == [
        {
            "row": 1,
            "total": 1.0,
            "rewards": {"right": 1.0, "unit": 0.0},
            "errors": {},
            "explanations": {"right": "69 equals 69", "unit": "unit.py returned False"},
            "completion": "It is 69.",
        },
        {
            "row": 2,
            "total": 0.5,
            "rewards": {"right": 0.0, "unit": 1.0},
            "errors": {},
            "explanations": {"right": "68 is not 69", "unit": "unit.py returned True"},
            "completion": "68 m",
        },
        {
            "row": 3,
            "total": None,
            "rewards": {},
            "errors": {"right": "the reference is missing", "unit": "KeyError: 'unit' (unit.py, line 1)"},
            "explanations": {},
            "completion": "69",
        },
    ]


FILE_MISTAKES = [
    (b'{"completion": "a"}\n{"completion": \n', "line 2: is not JSON"),
    (b'\n["a"]\n', "line 2: expected a JSON object, got ['a']"),
    (b'{"reply": "a", "prompt": "b"}\n', "line 1: has no 'completion'; columns: reply, prompt"),
    (b'{"completion": 5}\n', "line 1: 'completion' must be text, got 5"),
    (b'{"completion": null}\n', "line 1: 'completion' must be text, got None"),
    (b'{"completion": "a", "prompt": []}\n', "line 1: 'prompt' must be text, got []"),
    (b"\n \n", "has no rows"),
    (b'{"completion": "\xff"}\n', "line 1: byte 0xff is not UTF-8"),
    (None, "cannot be read: No such file or directory"),
]


@pytest.mark.parametrize(("content", "message"), FILE_MISTAKES, ids=[message for _, message in FILE_MISTAKES])
def test_mistake_in_a_file_of_completions(content: bytes | None, message: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    if content is not None:
        rows.write_bytes(content)
    with pytest.raises(UserError) as error:
        list(score_file(reward_set(short={"type": "length", "max_chars": 9}), rows))
    assert str(error.value).startswith(f"{rows}")
    assert message in str(error.value)


def test_importing_rewards_loads_nothing_heavy() -> None:
    code = (
        "import sys, conf.rewards, rewards.scoring, rewards.sources\n"
        "from pathlib import Path\n"
        "rewards.scoring.RewardSet(conf.rewards.load_rewards({'a': {'type': 'json', 'keys': ['x']}}))\n"
        "heavy = {'torch', 'numpy', 'jsonschema', 'transformers', 'prefect', 'mlflow', 'hydra', 'omegaconf', 'yaml'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "piece", ["1", "1,", "1/", "1.", "-", "$", "1,111,", ",111", "1e", "/1", "1-", "`", "[", '{"a":']
)
def test_runaway_completions_cost_no_time(piece: str) -> None:
    rewards = reward_set(
        right={"type": "numeric"},
        form={"type": "json"},
        fields={"type": "fields", "column": "fields"},
        exact={"type": "exact"},
        inside={"type": "contains"},
    )
    start = time.process_time()
    score = rewards.require("", piece * 20_000, "7", {"fields": {"a": 1}})
    assert score.total == 0
    assert time.process_time() - start < 2
