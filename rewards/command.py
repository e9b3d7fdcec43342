"""Reward `command`: what a program says of the completion, run in a sandbox (`rewards.sandbox`).

Python unit tests as a reward, from a column of the data with the tests of each row (as text, or a list of texts such
as `assert add(1, 2) == 3`):

    works:
      type: command
      extract: python
      tests_column: tests
      timeout: 5

Tests are functions `test_*`, `unittest` cases, or plain code that asserts; they find what the solution defines under
its own names and in the module `solution`. They run in a process that the solution cannot reach (see `rewards.judge`):
a solution that exits early, patches `unittest` or returns something that equals everything passes none. That is why
`tests` is to be preferred to a `command` such as `[python, "{file}"]`: there the completion is the program, and
`exit(0)` is all it takes to earn 1. Use `command` for a program of yours that reads the completion as data (a compiler,
a linter, a proof checker), or where you accept that.

The program finds the completion in `{file}` and on standard input, in a directory of its own that also holds `files`.
`{sample}` is a JSON file with prompt, completion, reference and row; it is written only when the command names it,
because a program that executes the completion shows it everything in the directory. `python` is the Python that runs
Ratchet; other programs are searched on the PATH.

What is the completion's fault is a value, `failed_value`, with the reason: another exit status than 0, death by a
signal, running out of time, memory or output. What is not is an error: a program that cannot be started, a sandbox
that fails, tests that are not Python or test nothing, a program that succeeds without printing the number asked for.
"""

import io
import json
import math
import os
import re
import shutil
import signal
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from conf.code_rewards import CommandConfig, CommandScore, Extract
from conf.errors import ConfigError
from conf.reward_base import RewardConfig
from rewards.contract import Reward, RewardError, Sample, Value, shown
from rewards.extract import PYTHON, last_code
from rewards.sandbox import Limits, Outcome, Program, SandboxError, isolation, run
from rewards.sources import resolve

_JUDGE = ("__init__.py", "remote.py", "judge.py")
_START_JUDGE = "import os; from rewards.judge import main; os._exit(main())"
_BAD_TESTS = 2
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)", re.IGNORECASE)
_ENDED = {
    "timeout": "ran out of time ({0.timeout:g} s)",
    "output": "wrote more than {0.output_kb} kB",
    "memory": "used more than {0.memory_mb} MB",
    "sandbox": "killed the process that watches it",
}


def command(config: CommandConfig, folder: Path | None) -> Reward:
    """By `score`, whether the program succeeds or the last number it prints; `failed_value` when it fails.

    Raises:
        ConfigError: The program does not exist or cannot be executed, or a file cannot be read.
    """
    if sys.platform != "linux":
        raise ConfigError("type: command needs Linux, whose means its sandbox is made of")
    limits = Limits(**{name: getattr(config, name) for name in Limits.__dataclass_fields__})
    files = {name: _content(f"files.{name}", resolve(path, folder)) for name, path in config.files.items()}
    visible = [str(resolve(path, folder)) for path in config.visible]
    if config.command:
        words = [_program(config.command[0], folder), *config.command[1:]]
    else:
        words = [sys.executable, "-I", "{scratch}/judge.zip", "{file}"]
        files["judge.zip"] = _judge()
    if words[0] == sys.executable and not isolation().namespaces:
        _try_python()
    tests = None if config.tests is None else [_content("tests", resolve(config.tests, folder)).decode()]

    def reward(sample: Sample) -> Value:
        code = _extracted(config.extract, sample.completion).encode(errors="replace")
        text = code if config.command else json.dumps(tests or _tests(config.tests_column, sample)).encode()
        beside = {**files, **_sample_file(words, sample), config.file: code}
        program = Program(command=_filled(words, config.file), files=beside, stdin=text, visible=visible)
        outcome = run(program, limits)
        if not config.command and outcome.status == _BAD_TESTS:
            raise RewardError(_last_line(outcome.stderr))
        return _value(config, limits, outcome)

    return reward


def notices(configs: Mapping[str, RewardConfig]) -> list[str]:
    """What a user should know before a run: in which isolation the programs of `command` rewards will run."""
    names = [repr(name) for name, config in configs.items() if isinstance(config, CommandConfig)]
    return [f"sandbox of {', '.join(names)}: {isolation().description}"] if names else []


def _program(name: str, folder: Path | None) -> str:
    """The absolute path of a program."""
    if name in ("python", "python3"):
        return sys.executable
    found = shutil.which(str(resolve(name, folder)) if "/" in name else name)
    if found is None:
        raise ConfigError(f"command: there is no program {name!r} that can be executed")
    return os.path.abspath(found)


def _try_python() -> None:
    """Without namespaces, root's programs run as another user, and may be closed to that one."""
    try:
        run(Program(command=[sys.executable, "-I", "-S", "-c", ""]), Limits())
    except SandboxError as error:
        raise ConfigError(
            f"command: {error}; as the kernel allows no namespaces, programs of root run as another user, who must be "
            f"able to read Python's directory, {sys.base_prefix}"
        ) from None


def _content(key: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror or error}") from None


def _judge() -> bytes:
    """The program that runs unit tests, as one file that Python executes."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("__main__.py", _START_JUDGE)
        for name in _JUDGE:
            file.write(Path(__file__).with_name(name), f"rewards/{name}")
    return archive.getvalue()


def _extracted(extract: Extract, completion: str) -> str:
    if extract is Extract.none:
        return completion
    return last_code(completion, PYTHON if extract is Extract.python else None)


def _tests(column: str | None, sample: Sample) -> list[str]:
    if column is None or column not in sample.row:
        columns = ", ".join(sample.row) or "none"
        raise RewardError(f"the row has no column {column!r} with unit tests; columns: {columns}")
    tests = sample.row[column]
    texts = [tests] if isinstance(tests, str) else tests
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise RewardError(f"column {column!r} must hold unit tests, as text or a list of texts; got {shown(tests)}")
    return list(texts)


def _sample_file(words: list[str], sample: Sample) -> dict[str, bytes]:
    if not any("{sample}" in word for word in words):
        return {}
    values = {"prompt": sample.prompt, "completion": sample.completion, "reference": sample.reference}
    return {"sample.json": json.dumps({**values, "row": dict(sample.row)}, default=str).encode()}


def _filled(words: list[str], file: str) -> list[str]:
    return [word.replace("{file}", "{scratch}/" + file).replace("{sample}", "{scratch}/sample.json") for word in words]


def _value(config: CommandConfig, limits: Limits, outcome: Outcome) -> Value:
    seen = _last_line(outcome.stderr if config.score is CommandScore.exit_status or not config.command else "")
    said = f": {seen}" if seen else ""
    graded = config.score is CommandScore.last_number
    if outcome.ended is not None:
        return Value(config.failed_value, _ENDED[outcome.ended].format(limits))
    if outcome.status is not None and outcome.status < 0:
        return Value(config.failed_value, f"killed by {_signal(-outcome.status)}{said}")
    if graded and (outcome.status == 0 or (not config.command and outcome.status == 1)):
        number = _last_number(outcome.stdout)
        return Value(number, seen or f"printed {number:g}")
    if outcome.status == 0:
        return Value(1.0, f"ended with status 0{said}")
    return Value(config.failed_value, f"ended with status {outcome.status}{said}")


def _last_number(text: str) -> float:
    words = [word.rstrip(".,;:") for word in text.split()]
    numbers = [match[0] for word in words if (match := _NUMBER.fullmatch(word))]
    if not numbers:
        raise RewardError(f"the program succeeded but printed no number: {shown(text)}")
    number = float(numbers[-1])
    if not math.isfinite(number):
        raise RewardError(f"the last number that the program printed is not finite: {numbers[-1]}")
    return number


def _signal(number: int) -> str:
    meaning = {
        signal.SIGXCPU: " (processor time)",
        signal.SIGKILL: " (perhaps a limit)",
        signal.SIGXFSZ: " (file size)",
    }
    try:
        return signal.Signals(number).name + meaning.get(signal.Signals(number), "")
    except ValueError:
        return f"signal {number}"


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][-200:]
