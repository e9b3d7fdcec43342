"""Reward `command`: solutions that cheat on their tests, programs that see what they should, mistakes in settings."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import rewards.command
import rewards.sandbox
from conf.errors import ConfigError
from conf.rewards import load_rewards
from rewards.command import notices
from rewards.extract import PYTHON, last_code
from rewards.sandbox import Isolation, isolation
from rewards.scoring import RewardSet, Score
from rewards.sources import reward_sources

TESTS = """
import unittest
import solution
from solution import *

class AddTest(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(add(1, 2), 3)
        self.assertEqual(add(2718, 281), 2999)

    def test_types(self):
        with self.assertRaises(TypeError):
            solution.add(1, None)

def test_plain():
    assert add([1], [2]) == [1, 2]
"""
HONEST = "def add(a, b):\n    return a + b\n"


def judged(completion: str, tests: Any = TESTS, **settings: Any) -> Score:
    config = {"type": "command", "tests_column": "tests", "timeout": 20, **settings}
    return RewardSet(load_rewards({"it": config})).score("", completion, None, {"tests": tests})


def value(completion: str, tests: Any = TESTS, **settings: Any) -> float:
    score = judged(completion, tests, **settings)
    assert score.errors == {}
    return score.values["it"]


def test_the_honest_solution_passes() -> None:
    assert value(HONEST) == 1
    assert value(f"Here it is:\n```python\n{HONEST}```\nDone.", extract="python") == 1


CHEATS = {
    "nothing": "",
    "no Python": "def add(",
    "exits at once": "import os\nos._exit(0)",
    "exits politely": "raise SystemExit(0)",
    "exits when called": "import os\ndef add(a, b): os._exit(0)",
    "exits at the end": "import atexit, os\natexit.register(os._exit, 0)\nadd = None",
    "equals everything": (
        "class E:\n    def __eq__(self, other): return True\n    def __call__(self, *a): return self\nadd = E()"
    ),
    "equals everything, as a number": (
        "class E(int):\n    def __eq__(self, other): return True\n"
        "    __hash__ = int.__hash__\ndef add(a, b): return E()"
    ),
    "patches unittest": (
        "import unittest\nfor name in dir(unittest.TestCase):\n"
        "    if name.startswith('assert'): setattr(unittest.TestCase, name, lambda *a, **k: None)\n"
        "def add(a, b): raise TypeError"
    ),
    "patches builtins": "import builtins\nbuiltins.AssertionError = KeyboardInterrupt\ndef add(a, b): raise TypeError",
    "shadows names of the tests": (
        "class unittest:\n    class TestCase: pass\ndef test_plain(): pass\n"
        "class AddTest: pass\ndef add(a, b): return 0"
    ),
    "shadows builtins": "__builtins__ = {}\n__name__ = 'x'\ndef add(a, b): return 0\ndef __getattr__(name): return add",
    "prints what a runner prints": (
        "import os\nfor n in range(3, 20):\n    try: os.write(n, b'1.0\\n')\n    except OSError: pass\n"
        "print('3 of 3 tests passed\\n1.0')\ndef add(a, b): return 0"
    ),
    "skips": "import unittest\ndef add(a, b): raise unittest.SkipTest('hard')",
    "kills the judge": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos._exit(0)",
    "replaces what it finds": (
        "import os\nfor name in os.listdir():\n    try: os.remove(name)\n    except OSError: pass\n"
        "    open(name, 'w').write('import os; os._exit(0)')\ndef add(a, b): return 0"
    ),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_passes_nothing(cheat: str) -> None:
    score = judged(CHEATS[cheat])
    assert score.values == {"it": 0}
    assert score.explanations["it"]


def test_tests_cannot_be_read_by_the_solution() -> None:
    """Neither from files, nor from the memory, arguments or descriptors of any process."""
    spy = """
import gc, glob, os, sys
def add(a, b):
    seen = [open(path, 'rb').read() for path in glob.glob('**', recursive=True) if os.path.isfile(path)]
    for process in set(filter(str.isdigit, os.listdir('/proc'))) - {str(os.getpid())}:
        for file in ('cmdline', 'environ', 'fd/0', 'stat'):
            try: seen.append(open(f'/proc/{process}/{file}', 'rb').read(10**6))
            except OSError: pass
        try:
            with open(f'/proc/{process}/mem', 'rb') as memory:
                for line in open(f'/proc/{process}/maps'):
                    if ' rw-p ' in line:
                        start, end = (int(n, 16) for n in line.split()[0].split('-'))
                        memory.seek(start)
                        try: seen.append(memory.read(end - start))
                        except OSError: pass
        except OSError: pass
    token = b'se' + b'cret_'
    return [text[text.index(token):][:20].decode() for text in seen if token in text]
"""
    tests = 'def test_it():\n    found = add(1, 2)\n    name = "secret_1f9c7a"\n    assert found != [], found\n'
    score = judged(spy, tests)
    assert score.values == {"it": 0}
    assert "AssertionError: []" in score.explanations["it"]


def test_objects_stay_with_the_solution_and_can_be_used() -> None:
    stack = (
        "class Stack:\n    limit = 3\n    def __init__(self, *items): self.items = list(items)\n"
        "    def push(self, item): self.items.append(item); return self\n"
        "    def __len__(self): return len(self.items)\n"
        "    def __add__(self, n): return sum(self.items) + n\n    def __str__(self): return 'stack'\n"
        "    def __getitem__(self, n): return self.items[n]\n"
        "def double(stack): return [2 * item for item in stack.items]\ndef order(items): items.sort()\n"
        "def count(n):\n    yield from range(n)\nclass Own(Exception): pass\ndef fail(): raise Own('no')\nPI = 3.14\n"
    )
    tests = [
        "s = Stack(1, 2); s.push(3).push((4, {'five': {6}})); assert len(s) == 4 and s[3] == (4, {'five': {6}})",
        "assert Stack.limit == 3 and PI == 3.14 and Stack(1).items == [1]",
        "assert double(Stack(1, 2)) == [2, 4]",
        "x = [3, 1, 2]; order(x); assert x == [1, 2, 3]",
        "assert list(count(3)) == [0, 1, 2]",
        "assert list(Stack(7, 8)) == [7, 8]",
        "s = Stack(1); assert s.push(2) == s != Stack(1, 2) and s + 5 == 8 and 3 in count(4) and str(s) == 'stack'",
        "s = Stack(); s.items = [5]; assert s and s.items == [5] and next(iter(s)) == 5",
        "try: fail()\nexcept Exception as error: assert 'Own: no' in str(error)\nelse: assert False",
        "assert 10 ** 5000 == __import__('solution').big()",
        "async def test_async():\n    assert PI == 3.14",
    ]
    assert value(stack + "def big(): return 10 ** 5000\n", tests, score="last_number") == 1


def test_graded_by_the_fraction_of_tests() -> None:
    half = "def add(a, b):\n    return [] if isinstance(a, list) else a + b\n"
    assert value(half, score="last_number") == pytest.approx(2 / 3)
    assert (
        value("def add(a, b): return 3", ["assert add(1, 2) == 3"] * 3 + ["assert not add(0, 0)"], score="last_number")
        == 0.75
    )


def test_a_hanging_solution_ends_and_says_so() -> None:
    score = judged("while True: pass", timeout=1)
    assert (score.values, score.explanations) == ({"it": 0}, {"it": "ran out of time (1 s)"})


@pytest.mark.parametrize(
    "tests", ["import unittest\nclass T(unittest.TestCase): pass", "def test_a(fixture): assert 1", [], [1]]
)
def test_tests_that_cannot_judge_are_an_error(tests: Any) -> None:
    score = judged(HONEST, tests)
    assert score.values == {}
    assert "test" in score.errors["it"]


def test_tests_from_a_file_are_part_of_the_reward(tmp_path: Path) -> None:
    (tmp_path / "test_add.py").write_text(TESTS)
    (tmp_path / "helper.py").write_text("one = 1")
    configs = load_rewards({"it": {"type": "command", "tests": "test_add.py", "files": {"helper.py": "helper.py"}}})
    score = RewardSet(configs, tmp_path).score("", f"from helper import one\n{HONEST}", None, {})
    assert score.values == {"it": 1}
    assert reward_sources(configs, tmp_path) == [tmp_path / "helper.py", tmp_path / "test_add.py"]


def test_the_program_of_a_user_sees_the_sample_only_if_it_asks(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(
        "import json, os, sys\n"
        "sample = json.load(open(sys.argv[2])) if len(sys.argv) > 2 else None\n"
        "assert (sample is None) == (not os.path.exists('sample.json'))\n"
        "assert open(sys.argv[1]).read() == sys.stdin.read() == 'abc'\n"
        "assert sample in (None, {'prompt': 'p', 'completion': 'abc', 'reference': 4, 'row': {'x': [1]}})\n"
        "print(sample['reference'] if sample else -1)\n"
    )
    for words, expected in ((["{file}", "{sample}"], 4), (["{file}"], -1)):
        settings = {"command": ["python", "-I", "judge.py", *words], "files": {"judge.py": "judge.py"}}
        configs = load_rewards({"it": {"type": "command", "score": "last_number", **settings}})
        score = RewardSet(configs, tmp_path).score("p", "abc", 4, {"x": [1]})
        assert (score.values, score.errors) == ({"it": expected}, {})


def test_a_program_of_a_users_own_runs_though_its_directory_is_hidden(tmp_path: Path) -> None:
    tool, link = tmp_path / "tool", tmp_path / "link"
    tool.write_text("#!/bin/sh\ncat " + str(tmp_path / "data") + "\n")
    tool.chmod(0o755)
    tmp_path.chmod(0o755)
    link.symlink_to(tool)
    (tmp_path / "data").write_text("5")
    for visible, expected in ((["data"], {"it": 5}), ([], {"it": 0} if isolation().namespaces else {"it": 5})):
        settings = {"type": "command", "command": ["./link"], "score": "last_number", "visible": visible}
        assert RewardSet(load_rewards({"it": settings}), tmp_path).score("", "", None, {}).values == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": ["no-such-program"]}, "reward 'it': command: there is no program 'no-such-program'"),
        ({"command": ["./gone"]}, "reward 'it': command: there is no program './gone'"),
        ({"tests": "gone.py"}, "reward 'it': tests: "),
        ({"command": ["true"], "files": {"a": "gone"}}, "reward 'it': files.a: "),
        ({}, "reward.it.command: give one of command"),
        ({"command": ["true"], "tests": "t.py"}, "reward.it.command: give one of command"),
        ({"command": "true"}, "reward.it.command: expected a list"),
        ({"command": ["true"], "file": "../x"}, "reward.it.file: '../x' must be a plain file name"),
        ({"command": ["true"], "files": {"/x": "y"}}, "reward.it.files: '/x' must be a plain file name"),
        ({"tests": "t.py", "files": {"judge.zip": "y"}}, "reward.it.files: 'judge.zip' must be a plain file name"),
        ({"command": ["true"], "files": {"completion.py": "y"}}, "reward.it.files: 'completion.py' is the file"),
        ({"command": ["true"], "timeout": 0}, "reward.it.timeout: must be above 0"),
        ({"command": ["true"], "processes": 0}, "reward.it.processes: must be at least 1"),
    ],
)
def test_mistakes_in_settings(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        RewardSet(load_rewards({"it": {"type": "command", **settings}}), tmp_path)
    assert str(error.value).startswith(message)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's programs run as another user")
def test_a_python_that_the_sandbox_cannot_read_is_found_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A Python in a directory of root's own, where the kernel allows no namespaces."""
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "closed" / "python"))
    for module in (rewards.command, rewards.sandbox):
        monkeypatch.setattr(module, "isolation", lambda: Isolation(False, "limits only"))
    with pytest.raises(ConfigError, match=r"^reward 'it': command: the sandbox failed: .*Permission denied"):
        RewardSet(load_rewards({"it": {"type": "command", "command": ["python", "{file}"]}}))


def test_the_example_of_the_documentation_works() -> None:
    text = str(rewards.command.__doc__)
    example = yaml.safe_load(text[text.index("    works:") : text.index("Tests are functions")])
    row = {"tests": ["assert add(1, 2) == 3"]}
    scores = RewardSet(load_rewards(example)).score("", f"```python\n{HONEST}```", None, row)
    assert scores.values == {"works": 1}


def test_isolation_in_force_is_told() -> None:
    configs = load_rewards({"a": {"type": "command", "command": ["true"]}, "b": {"type": "exact"}})
    assert notices(configs) == [f"sandbox of 'a': {isolation().description}"]
    assert notices(load_rewards({"b": {"type": "exact"}})) == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x = 1", "x = 1"),
        ("```python\nx\n```", "x\n"),
        ("```Python title=a\nx\n```", "x\n"),
        ("a\n```\nx\n```\nb\n```py\ny\n```\nc", "y\n"),
        ("```python\nx\n```\n```json\n{}\n```", "x\n"),
        ("````python\n```\nx\n```\n````", "```\nx\n```\n"),
        ("~~~python\nx\n```\n~~~", "x\n```\n"),
        ("```python\nx", "x"),
        ("```python\nx\n```\n```python\ny", "y"),
        ("```python\n```", ""),
        ("The code: ```python\nx\n```", "x\n"),
        ("Use ```x``` or\n```\ny\n```", "y\n"),
        ("- so\n  ```python\n  if x:\n    y\n  ```", "if x:\n  y\n"),
        ("```python\r\nx\r\n```\r\n", "x\r\n"),
    ],
)
def test_last_code(text: str, code: str) -> None:
    assert last_code(text, PYTHON) == code


def test_settings_survive_writing_and_reading() -> None:
    from conf.loader import dump

    configs = load_rewards({"it": {"type": "command", "command": [sys.executable, "{file}"], "extract": "python"}})
    assert load_rewards(json.loads(json.dumps({"it": dump(configs["it"])}))) == configs
