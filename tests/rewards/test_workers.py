"""Custom functions that hang, die or return garbage: each is an error of its sample, and nothing else is harmed."""

import gc
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError
from conf.rewards import load_rewards
from rewards.calling import InThreads
from rewards.contract import RewardError, Sample, Value
from rewards.scoring import RewardSet, failures
from rewards.workers import LIMIT, WorkerPool

ROOT = Path(__file__).parents[2]


def custom(folder: Path, source: str, **settings: Any) -> RewardSet:
    (folder / "mine.py").write_text(source, encoding="utf-8")
    return RewardSet(load_rewards({"mine": {"type": "custom", "path": "mine.py", "timeout": 60, **settings}}), folder)


def samples(*completions: str, **row: Any) -> list[Sample]:
    return [Sample("?", completion, None, row) for completion in completions]


def alive(pid: int) -> bool:
    """Whether a process runs; one that was killed and waits for its parent to notice does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False


def gone(pid: int, within: float = 60) -> bool:
    end = time.monotonic() + within
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


HOSTILE = [
    ("while True: pass", "timed out after 2 s"),
    ("import time; time.sleep(60)", "timed out after 2 s"),
    ("import os; os._exit(3)", "the worker process exited with status 3"),
    ("import os; os._exit(0)", "the worker process exited with status 0"),
    ("import sys; sys.exit(1)", "SystemExit: 1 (mine.py, line 4)"),
    ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL (out of memory, or killed by somebody)"),
    ("import os; os.abort()", "killed by SIGABRT"),
    ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "timed out after 2 s"),
    ("import os; os.closerange(3, 100); return 1", "the worker process "),
    ("raise ValueError('odd')", "ValueError: odd (mine.py, line 4)"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ("def f(): return f()\n    return f()", "RecursionError"),
]


@pytest.mark.parametrize(("line", "message"), HOSTILE, ids=[line[:50] for line, _ in HOSTILE])
def test_hostile_function(line: str, message: str, tmp_path: Path) -> None:
    source = f"def reward(completion):\n    if completion != 'bad':\n        return len(completion)\n    {line}\n"
    if line.startswith("yield"):
        source = (
            f"def odd():\n    {line}\ndef reward(completion): return odd() if completion == 'bad' else len(completion)"
        )
    with custom(tmp_path, source, timeout=2 if "timed out" in message else 60) as rewards:
        before, bad, after = rewards.score_all(samples("a", "bad", "abc"))
        assert (before.values, after.values) == ({"mine": 1}, {"mine": 3})
        assert message in bad.errors["mine"] and not bad.values and math.isnan(bad.total)
        with pytest.raises(RewardError, match=r"^row 1: reward 'mine' failed: .*completion 'bad'"):
            rewards.require_all(samples("a", "bad", "abc"), lambda index: f"row {index}")


GARBAGE = [
    ("float('nan')", "the value is not finite: nan"),
    ("-float('inf')", "the value is not finite: -inf"),
    ("10 ** 400", "the value is not finite: OverflowError"),
    ("1e300", "too large to train on"),
    ("'1'", "the value is not a number: '1' (str)"),
    ("None", "the value is not a number: None (NoneType)"),
    ("1j", "the value is not a number: 1j (complex)"),
    ("[1.0]", "the value is not a number: [1.0] (list)"),
    ("__import__('numpy').ones(2)", "the value is not a number: array([1., 1.]) (ndarray)"),
    ("type('Liar', (), {'__repr__': lambda self: 1 / 0})()", "ZeroDivisionError"),
    ("(number for number in [1])", "(generator)"),
]


def test_values_that_are_no_finite_number(tmp_path: Path) -> None:
    source = "def reward(completion): return eval(completion)"
    with custom(tmp_path, source) as rewards:
        scores = rewards.score_all(samples(*(value for value, _ in GARBAGE), "True"))
    for (value, message), score in zip(GARBAGE, scores, strict=False):
        assert message in score.errors["mine"] and not score.values and math.isnan(score.total), value
    assert scores[-1].values == {"mine": 1}


HARMLESS = [
    "print('x' * 5_000_000); return 1",
    'import sys; sys.__stdout__.write(\'{"id": 1, "outcomes": [[5, ""]]}\\n\'); return 1',
    "import os; os.write(1, b'{}\\n'); return 1",
    "import sys; sys.stdout.close(); return 1",
    "import sys; sys.stdin.read(); input_is_empty = True; return input_is_empty",
    "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); return 1",
    "import os\n    if os.fork() == 0: return 5\n    return 1",
    "import subprocess; subprocess.Popen(['sleep', '60']); return 1",
    "import os, tempfile; os.chdir(tempfile.gettempdir()); return 1",
    "import multiprocessing; return multiprocessing.get_context('spawn').Pool(1).map(len, ['a'])[0]",
]


@pytest.mark.parametrize("line", HARMLESS, ids=[line[:50] for line in HARMLESS])
def test_function_with_side_effects(line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with custom(tmp_path, f"def reward():\n    {line}\n") as rewards:
        assert [score.values for score in rewards.score_all(samples("a", "b", "c"))] == [{"mine": 1}] * 3
    assert not capfd.readouterr().out


def test_what_a_function_starts_ends_with_it(tmp_path: Path) -> None:
    source = (
        "import os, subprocess, time\n"
        "def reward(completion, row):\n"
        "    child = subprocess.Popen(['sleep', '60'])\n"
        "    open(row['file'], 'w').write(f'{os.getpid()} {child.pid}')\n"
        "    time.sleep(60)\n"
    )
    with custom(tmp_path, source, timeout=5) as rewards:
        assert "timed out" in rewards.score_all(samples("a", file=str(tmp_path / "pids")))[0].errors["mine"]
        assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_rows_keep_their_types_and_one_sample_cannot_change_another(tmp_path: Path) -> None:
    source = (
        "def reward(completion, reference, row):\n"
        "    assert row == {'a': [1, {'b': None}], 'c': 1.5, 'd': True, 'e': 'ü\\ud800'} and type(row['a'][0]) is int\n"
        "    row['a'].append(2); row.clear()\n"
        "    return reference['n']\n"
    )
    row = {"a": [1, {"b": None}], "c": 1.5, "d": True, "e": "ü\ud800"}
    with custom(tmp_path, source) as rewards:
        scores = rewards.score_all([Sample("?", "x", {"n": number}, row) for number in range(5)])
    assert [score.values["mine"] for score in scores] == [0, 1, 2, 3, 4]
    assert row["a"] == [1, {"b": None}]


@pytest.mark.parametrize(
    ("reference", "row", "message"),
    [
        (None, {"when": date(2024, 1, 15)}, "the column 'when' cannot be sent"),
        (None, {"raw": [b"x"]}, "the column 'raw' cannot be sent"),
        ({1}, {}, "the reference cannot be sent"),
        (None, {(1, 2): 3}, "its columns need names"),
    ],
)
def test_what_json_cannot_hold_is_named(reference: Any, row: dict[Any, Any], message: str, tmp_path: Path) -> None:
    with custom(tmp_path, "def reward(): return 1") as rewards:
        bad, good = rewards.score_all([Sample("?", "a", reference, row), Sample("?", "a", None, {})])
    assert message in bad.errors["mine"] and good.values == {"mine": 1}


def test_large_samples_cross(tmp_path: Path) -> None:
    with custom(tmp_path, "def reward(completion): return len(completion)") as rewards:
        sizes = [3_000_000, 1, 5_000_000]
        assert [s.values["mine"] for s in rewards.score_all(samples(*("x" * size for size in sizes)))] == sizes


MEETING = """
import time
from pathlib import Path
def reward(completion):
    if completion == "quick":
        return 0
    Path("begun" + completion).touch()
    wait_until(lambda: len(list(Path().glob("begun*"))) == 4)
    wait_until(lambda: completion == "3" or Path(f"done{int(completion) + 1}").exists())
    Path("done" + completion).touch()
    return int(completion)
def wait_until(so):
    while not so():
        time.sleep(0.01)
"""
"""Numbers from 0 to 3 wait until all have begun, and end backwards."""


def test_slow_functions_run_in_parallel_and_quick_ones_in_one_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MEETING)
    config: Any = load_rewards({"mine": {"type": "custom", "path": "mine.py", "timeout": 60}})["mine"]
    pool = WorkerPool(config, tmp_path, limit=4)
    pool.check()
    with monkeypatch.context() as patch:
        patch.setattr("rewards.workers.PATIENCE", 60.0)  # however slow the machine, they are quick
        pool.judge(samples(*["quick"] * 20))
    assert len(pool._workers) == 1
    values = [outcome.value for outcome in pool.judge(samples(*"0123"))]  # type: ignore[union-attr]
    assert values == [0, 1, 2, 3], "in order, whichever is done first"
    assert len(pool._workers) == 4
    pool.close()
    assert not pool._workers


@pytest.mark.parametrize("limit", [1, 3])
def test_outcomes_do_not_depend_on_the_number_of_workers(limit: int, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, time\n"
        "def reward(completion):\n"
        "    time.sleep(0.03)\n"
        "    if completion == 'die': os._exit(1)\n"
        "    if completion == 'raise': raise ValueError\n"
        "    return len(''.join({'a', 'bb', completion})) + hash(completion) % 1000\n"
    )
    config: Any = load_rewards({"mine": {"type": "custom", "path": "mine.py"}})["mine"]
    pool = WorkerPool(config, tmp_path, limit=limit)
    pool.check()
    outcomes = pool.judge(samples("a", "die", "abc", "raise", "die", "abcd", "b", "c", "d"))
    failed = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, RewardError)]
    assert failed == [1, 3, 4]
    first = pool.judge(samples("a", "b", "raise", "die", "a"), until_failure=True)
    assert [isinstance(outcome, RewardError) for outcome in first] == [False, False, True]
    alone = WorkerPool(config, tmp_path, limit=1)
    alone.check()
    assert alone.judge(samples("abcd")) == [outcomes[5]]
    pool.close()


def test_a_stage_stops_at_the_first_failure_without_waiting_for_the_rest(tmp_path: Path) -> None:
    source = (
        "import time\nfrom pathlib import Path\n"
        "def reward(completion, row):\n    Path(row['folder'], completion).touch()\n    time.sleep(600)\n"
    )
    begun = tmp_path / "begun"
    begun.mkdir()
    with custom(tmp_path, source, timeout=2) as rewards:
        asked = samples(*map(str, range(4 * LIMIT)), folder=str(begun))
        with pytest.raises(RewardError, match=r"row 0: reward 'mine' failed: timed out after 2 s"):
            rewards.require_all(asked, lambda index: f"row {index}")
    assert len(list(begun.iterdir())) <= LIMIT


def test_failures_are_counted_per_reward(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def reward(completion): return 1 / len(completion)")
    settings = {"type": "custom", "path": "mine.py"}
    configs = load_rewards(
        {"mine": {**settings, "on_error": "score", "error_value": -1}, "right": {"type": "exact", "weight": 0}}
    )
    with RewardSet(configs, tmp_path) as rewards:
        scores = rewards.require_all([Sample("", text, "", {}) for text in ("a", "", "", "ab")], str)
    assert [score.total for score in scores] == [1, -1, -1, 0.5]
    assert failures(scores, configs) == {"failed_mine": 2}


def test_rewards_that_wait_do_so_together() -> None:
    seen = []
    meeting, judged = threading.Barrier(min(2, LIMIT)), threading.Event()

    def reward(sample: Sample) -> Value:
        seen.append(sample.completion)
        if sample.completion == "bad":
            raise RewardError("no")
        if sample.completion.startswith("x"):
            meeting.wait(60)
        if sample.completion == "late":
            assert judged.wait(60)
        return Value(len(sample.completion), "")

    waiting = InThreads(reward)
    outcomes = waiting.judge(samples(*("x" * length for length in range(1, 9))))
    assert [outcome.value for outcome in outcomes if isinstance(outcome, Value)] == list(range(1, 9))
    seen.clear()
    first = waiting.judge(samples("a", "bad", *["late"] * 50), until_failure=True)
    judged.set()
    waiting.close()
    assert [isinstance(outcome, RewardError) for outcome in first] == [False, True] and len(seen) <= 2 + LIMIT


def workers_of(rewards: RewardSet) -> list[int]:
    return [worker._process.pid for caller in rewards._callers.values() for worker in caller._workers]  # type: ignore[attr-defined]


def test_a_set_that_is_never_closed_leaves_no_process(tmp_path: Path) -> None:
    rewards = custom(tmp_path, "def reward(): return 1")
    (pid,) = workers_of(rewards)
    assert alive(pid)
    del rewards
    gc.collect()
    assert gone(pid)


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a set whose function hangs, and which tells the worker's id."""
    (tmp_path / "mine.py").write_text(
        "import os, time\n"
        "def reward():\n    print(os.getpid(), file=open('new', 'w'), flush=True); os.replace('new', 'pid')\n"
        "    while True: pass\n"
    )
    code = (
        "import signal; from conf.rewards import load_rewards; from rewards.scoring import RewardSet\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job inherits that it is ignored
        "rewards = RewardSet(load_rewards({'a': {'type': 'custom', 'path': 'mine.py', 'timeout': 100}}))\n"
        "rewards.score('', '', None, {})\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_busy_worker_ends_with_its_parent(how: signal.Signals, parent: Any, tmp_path: Path) -> None:
    end = time.monotonic() + 30
    while not (tmp_path / "pid").exists() and time.monotonic() < end:
        time.sleep(0.05)
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    parent.send_signal(how)
    assert gone(pid)


def test_from_a_thread_and_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rewards.py").write_text("raise RuntimeError('not the one')")  # beside the run, not on its path
    (tmp_path / "json.py").write_text("raise RuntimeError('not the one')")
    monkeypatch.chdir(tmp_path)
    source = "import signal\ndef reward(): return signal.signal(signal.SIGALRM, signal.SIG_DFL) == signal.SIG_DFL"
    found: list[float] = []

    def work() -> None:
        with custom(tmp_path, source) as rewards:
            found.append(rewards.score("", "", None, {}).total)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [1]


@pytest.mark.parametrize("path", [None, "/nowhere"])
def test_a_function_sees_the_environment_of_the_run(
    path: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "x")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if path:
        monkeypatch.setenv("PYTHONPATH", path)
    source = "import os\ndef reward(row): return {k: os.environ.get(k) for k in row} == row"
    with custom(tmp_path, source) as rewards:
        assert rewards.score("", "", None, {"SOME_TOKEN": "x", "PYTHONPATH": path}).values == {"mine": 1}


def test_a_worker_loads_nothing_heavy(tmp_path: Path) -> None:
    source = "import sys\ndef reward(): return sum(m in sys.modules for m in ('torch', 'numpy', 'jsonschema', 'hydra'))"
    with custom(tmp_path, source) as rewards:
        assert rewards.score("", "", None, {}).values == {"mine": 0}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import os; os._exit(4)", "the worker process exited with status 4, while the reward was loaded"),
        ("import sys; sys.exit(4)", "mine.py cannot be imported: SystemExit: 4"),
    ],
)
def test_code_that_cannot_be_loaded_is_found_when_the_set_is_made(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        custom(tmp_path, source)
    assert message in str(error.value)


def test_code_that_hangs_when_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewards.worker.START_LIMIT", 1.0)
    with pytest.raises(ConfigError, match="reward 'mine': timed out after 1 s, while the reward was loaded"):
        custom(tmp_path, "while True: pass")


def test_a_replacement_that_cannot_be_loaded_fails_the_rest(tmp_path: Path) -> None:
    source = "import os\ndef reward(completion): return 1 if completion == 'a' else os._exit(1)"
    with custom(tmp_path, source) as rewards:
        (tmp_path / "mine.py").unlink()
        first, *rest = rewards.score_all(samples("a", "b", "c", "d"))
    assert first.values == {"mine": 1}
    assert "exited with status 1" in rest[0].errors["mine"]
    assert all("there is no " in score.errors["mine"] for score in rest[1:])
