"""The settings of rewards that are code of their own: a library, a program, a function of the user."""

import enum
import re
from dataclasses import dataclass, field
from typing import Any

from conf.errors import ConfigError
from conf.options import option
from conf.reward_base import IsolatedConfig, RewardConfig


class Extract(enum.Enum):
    """Which part of a completion a program gets."""

    none = "none"
    code = "code"
    python = "python"


class CommandScore(enum.Enum):
    """How the end of a program becomes a value."""

    exit_status = "exit_status"
    last_number = "last_number"


@dataclass(kw_only=True)
class CommandConfig(RewardConfig):
    """Runs a program on the completion, in a sandbox; or unit tests on it (see `rewards.command`)."""

    command: list[str] = field(default_factory=list)
    """The program and its arguments, no shell: `{file}` is the file with the completion, `{sample}` one with all."""
    tests: str | None = None
    """In place of `command`: a file of Python unit tests, run on the completion."""
    tests_column: str | None = None
    """In place of `tests`: the column of the row that holds them, as text or a list of texts."""
    extract: Extract = Extract.none
    """`python`, `code`: what the last code fence holds (of Python; of any language), or all when there is none."""
    file: str = "completion.py"
    """Name of the file that holds the completion."""
    files: dict[str, str] = field(default_factory=dict)
    """Further files to put beside it: name to path."""
    visible: list[str] = field(default_factory=list)
    """Files and directories the program may read beside the system's and Python's."""
    score: CommandScore = CommandScore.exit_status
    """`exit_status`: 1 when it is 0; `last_number`: the last number printed (of tests, the fraction that passed)."""
    failed_value: float = 0.0
    """The value when the program ends with another status, is killed, or runs out of time or another limit."""
    timeout: float = option(10.0, gt=0)
    """Seconds by the clock."""
    cpu_seconds: int = option(10, ge=1)
    """Seconds of processor time of each process."""
    memory_mb: int = option(1024, ge=16)
    """Address space of each process, and resident memory of all together."""
    file_mb: int = option(64, ge=1)
    """Size of a file; with namespaces, of all files together."""
    processes: int = option(32, ge=1)
    """Processes and threads at once."""
    open_files: int = option(256, ge=16)
    """File descriptors of each process."""
    output_kb: int = option(1024, ge=1)
    """Standard output and error together."""

    def __post_init__(self) -> None:
        """Require one thing to run, plain file names, and a fallback the completion's fault can have."""
        super().__post_init__()
        if sum(map(bool, (self.command, self.tests, self.tests_column))) != 1:
            raise ConfigError("command: give one of command (a program and its arguments), tests and tests_column")
        for key, name in [("file", self.file), *(("files", name) for name in self.files)]:
            if not re.fullmatch(r"[\w-][\w.-]*", name) or name in ("judge.zip", "sample.json"):
                raise ConfigError(
                    f"{key}: {name!r} must be a plain file name, of letters, digits, _ . and -, not taken"
                )
        if self.file in self.files:
            raise ConfigError(f"files: {self.file!r} is the file with the completion")


@dataclass(kw_only=True)
class MathConfig(IsolatedConfig):
    """1 when the completion's last mathematical expression is equivalent to the reference, by math-verify.

    An expression may keep the library busy until the time limit, which is an error as everywhere; `on_error: score`
    with `error_value: 0` keeps a run going.
    """

    decimals: int = option(6, ge=0, le=15)
    """Decimal places to which numbers are rounded where one of the two is written with a decimal point."""


@dataclass(kw_only=True)
class GymConfig(IsolatedConfig):
    """What the scorer of the row's own reasoning-gym task says, for rows of a source `gym:<task>`."""

    tag: str | None = None
    """Take the answer from the last pair of these tags, `answer` for `<answer>7</answer>`; else the whole reply."""
    partial: bool = True
    """Keep the scorer's partial credit; otherwise 1 for full marks and 0 for anything less."""
    runs_replies: bool = False
    """Allow tasks whose scorer runs the reply as Python code (`rewards.gym.RUNS_REPLIES`), outside any sandbox."""

    def __post_init__(self) -> None:
        """Refuse an empty tag."""
        super().__post_init__()
        if self.tag is not None and not re.fullmatch(r"[\w-]+", self.tag):
            raise ConfigError(f"tag: expected a name such as answer, without brackets, got {self.tag!r}")


@dataclass(kw_only=True)
class CustomConfig(IsolatedConfig):
    """A Python function, called with those of `prompt`, `completion`, `reference`, `row` that it names, or TRL-style.

    One with a parameter `prompts`, `completions` or `completion_ids` is called as TRL calls its reward functions, with
    lists and every column of the rows by name (see `rewards.trl_style`).
    """

    path: str | None = None
    """A file with a function `reward`, or a folder (with `__init__.py` or `reward.py`) that has one."""
    function: str | None = None
    """Dotted path of an installed function, `package.module.function` or `package.module:function`, not a file."""
    args: dict[str, Any] | None = None
    """Arguments for a `function` that makes the reward function: it is called with them once, `{}` for none."""
    conversational: bool | None = None
    """TRL-style only: completions are messages (true) or texts (false); null takes it from the annotation."""

    def __post_init__(self) -> None:
        """Require exactly one origin, and arguments for a function only."""
        super().__post_init__()
        if bool(self.path) == bool(self.function):
            raise ConfigError("path: give either path (a file or folder) or function (a dotted path)")
        if self.function and not all(self.module_and_name()):
            raise ConfigError(f"function: expected package.module.function, got {self.function!r}")
        if self.args is not None and not self.function:
            raise ConfigError("args: goes with function, which is called with them to make the reward function")

    def module_and_name(self) -> tuple[str, str]:
        """The two parts of `function`; a colon may stand between them."""
        module, _, name = (self.function or "").replace(":", ".").rpartition(".")
        return module, name
