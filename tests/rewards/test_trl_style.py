"""Reward functions written for TRL: called as its trainer calls them, and never scored wrong in silence."""

from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError
from conf.rewards import load_rewards
from rewards.contract import Sample
from rewards.scoring import RewardSet


def trl_style(folder: Path, source: str, **settings: Any) -> RewardSet:
    (folder / "mine.py").write_text(source, encoding="utf-8")
    return RewardSet(load_rewards({"mine": {"type": "custom", "path": "mine.py", **settings}}), folder)


def numbered(*completions: str) -> list[Sample]:
    return [Sample(f"{index}?", text, None, {"n": index, "prompt": "p"}) for index, text in enumerate(completions)]


SEEN = (
    "def reward(prompts, completions, n, **kwargs):\n"
    "    assert set(kwargs) == {'trainer_state', 'log_extra', 'log_metric'} and kwargs['trainer_state'] is None\n"
    "    kwargs['log_metric']('a', 1.0); kwargs['log_extra']('b', n)\n"
    "    assert len(prompts) == len(completions) == len(n) <= 8\n"
)


def test_messages(tmp_path: Path) -> None:
    source = SEEN + (
        "    assert prompts == [[{'role': 'user', 'content': f'{i}?'}] for i in n]\n"
        "    assert all(len(c) == 1 and c[0]['role'] == 'assistant' for c in completions)\n"
        "    return [len(c[0]['content']) + 10 * i for c, i in zip(completions, n)]\n"
    )
    with trl_style(tmp_path, source, conversational=True) as rewards:
        scores = rewards.score_all(numbered(*("x" * length for length in range(21))))
    assert [score.values for score in scores] == [{"mine": 11 * length} for length in range(21)]


def test_texts(tmp_path: Path) -> None:
    source = SEEN + "    assert prompts == [f'{i}?' for i in n]\n    return [len(c) for c in completions]\n"
    with trl_style(tmp_path, source, conversational=False) as rewards:
        assert [score.total for score in rewards.score_all(numbered("", "a", "abc"))] == [0, 1, 3]


@pytest.mark.parametrize(
    ("annotation", "values"), [("list[list[dict[str, str]]]", [1, 1]), ("list[str]", [2, 3]), ("'list[str]'", [2, 3])]
)
def test_the_annotation_says_which(annotation: str, values: list[float], tmp_path: Path) -> None:
    source = f"def reward(completions: {annotation}, **kwargs): return [len(c) for c in completions]"
    with trl_style(tmp_path, source) as rewards:
        assert [score.total for score in rewards.score_all(numbered("ab", "abc"))] == values


def test_only_the_sample_at_fault_fails(tmp_path: Path) -> None:
    source = (
        "import os, time\n"
        "def reward(completions: list[str]):\n"
        "    if 'die' in completions: os._exit(1)\n"
        "    if 'hang' in completions: time.sleep(60)\n"
        "    return [None if c == 'none' else float('nan') if c == 'nan' else 1 / len(c) for c in completions]\n"
    )
    with trl_style(tmp_path, source, timeout=2) as rewards:
        scores = rewards.score_all(numbered("a", "", "ab", "die", "hang", "none", "nan", "abcd"))
    assert [score.values.get("mine") for score in scores] == [1, None, 0.5, None, None, None, None, 0.25]
    reasons = ["ZeroDivisionError", "exited with status 1", "timed out after 2 s", "returned None", "not finite"]
    for index, reason in zip((1, 3, 4, 5, 6), reasons, strict=True):
        assert reason in scores[index].errors["mine"]


def test_a_missing_column_is_an_error_of_its_row(tmp_path: Path) -> None:
    source = "def reward(completions: list[str], solution, **_): return [c == s for c, s in zip(completions, solution)]"
    with trl_style(tmp_path, source) as rewards:
        good = Sample("", "4", None, {"solution": "4"})
        scores = rewards.score_all([good, Sample("", "4", None, {"answer": "4"}), good])
    assert [score.values.get("mine") for score in scores] == [1, None, 1]
    assert "asks for the column 'solution', which the row lacks; columns: answer" in scores[1].errors["mine"]


def test_a_wrong_number_of_values_is_an_error(tmp_path: Path) -> None:
    with trl_style(tmp_path, "def reward(completions: list[str]): return [1.0, 2.0]") as rewards:
        assert "returned 2 values for 1 completions" in rewards.score("", "a", None, {}).errors["mine"]


MISTAKES = [
    (
        "def reward(completions, **kwargs): pass",
        {},
        "conversational: say whether mine.py takes completions",
    ),
    ("def reward(completion_ids, **kwargs): pass", {}, "path: mine.py asks for completion_ids; rewards see text"),
    ("async def reward(completions: list[str]): pass", {}, "path: 'mine.py' is asynchronous"),
    ("def reward(completion): pass", {"conversational": True}, "conversational: mine.py is not a TRL-style function"),
]


@pytest.mark.parametrize(("source", "settings", "message"), MISTAKES, ids=[message for *_, message in MISTAKES])
def test_mistake(source: str, settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        trl_style(tmp_path, source, **settings)
    assert str(error.value).startswith(f"reward 'mine': {message}")


def test_a_function_that_makes_the_reward_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "makers.py").write_text(
        "def longer(than):\n    def reward(completion): return len(completion) > than\n    return reward\n"
        "def number(): return 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def made(function: str, **settings: Any) -> RewardSet:
        return RewardSet(load_rewards({"a": {"type": "custom", "function": function, **settings}}))

    with made("makers.longer", args={"than": 2}) as rewards:
        assert [rewards.score("", text, None, {}).total for text in ("ab", "abc")] == [0, 1]
    for settings, message in [
        ({"function": "makers.longer"}, "function: longer asks for 'than'; .* needs args"),
        ({"function": "makers.longer", "args": {"then": 2}}, "args: TypeError: .*'then'"),
        ({"function": "makers.number", "args": {}}, "args: the function called with them returned 1"),
    ]:
        with pytest.raises(ConfigError, match=f"reward 'a': {message}"):
            made(**settings)


@pytest.mark.slow
def test_functions_of_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against what TRL's functions return when they are called directly; imports TRL in worker processes."""
    monkeypatch.setattr("rewards.worker.START_LIMIT", 300.0)
    from trl.rewards import accuracy_reward, reasoning_accuracy_reward, think_format_reward

    texts = [r"<think>\n1\n</think>\n\boxed{2}", r"\boxed{2}", "<think>a", r"<think>b</think> it is $\frac{4}{2}$"]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    for function in (think_format_reward, accuracy_reward, reasoning_accuracy_reward):
        expected = function(messages, solution=["2"] * 4)
        settings = {"type": "custom", "function": f"trl.rewards.{function.__name__}", "timeout": 60}
        with RewardSet(load_rewards({"it": settings})) as rewards:
            scores = rewards.score_all([Sample("?", text, None, {"solution": "2"}) for text in texts])
        assert [score.values["it"] for score in scores] == expected
        assert len(set(expected)) > 1
