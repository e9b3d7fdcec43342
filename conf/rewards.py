"""The typed settings of every reward type, and the door through which a `rewards.yaml` or a reward set comes in.

One dataclass per `type`; `rewards.library` has one function for each. Standard library only: what needs more (whether
a JSON Schema is valid, whether a custom file can be imported) is checked when `rewards.scoring.RewardSet` is made.
"""

import enum
import functools
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conf.errors import ConfigError
from conf.loader import load
from conf.options import option


class OnError(enum.Enum):
    """What becomes of a reward that fails: stop the work, or score a stated value (counted and shown)."""

    stop = "stop"
    score = "score"


class RegexMode(enum.Enum):
    """Whether the pattern may match anywhere or must match the whole completion."""

    search = "search"
    fullmatch = "fullmatch"


class RegexFlag(enum.Enum):
    """The flags of Python's `re` module."""

    ignorecase = re.IGNORECASE
    multiline = re.MULTILINE
    dotall = re.DOTALL
    verbose = re.VERBOSE
    ascii = re.ASCII


class KeywordMode(enum.Enum):
    """Which of the words must occur."""

    any = "any"
    all = "all"
    none = "none"


class CallForm(enum.Enum):
    """How a tool call is written: as bare JSON, or inside the tags of Hermes and Qwen chat templates."""

    plain = "plain"
    tagged = "tagged"


@dataclass(kw_only=True)
class RewardConfig:
    """What every reward has."""

    type: str
    """Which reward."""
    weight: float = 1.0
    """Factor of its value in the total; may be negative, not zero for all rewards of a set."""
    on_error: OnError = OnError.stop
    """`stop` when the reward fails (an exception, a missing reference, NaN), or `score` the `error_value` instead."""
    error_value: float | None = None
    """The value of a reward that fails, required by `on_error: score`."""

    def __post_init__(self) -> None:
        """Check what concerns several fields; messages start with the field's name."""
        if (self.on_error is OnError.score) != (self.error_value is not None):
            raise ConfigError("error_value: goes with on_error: score, and that needs it; set both or neither")


@dataclass(kw_only=True)
class IsolatedConfig(RewardConfig):
    """A reward that may hang or crash, and so is called in worker processes of its own (see `rewards.workers`)."""

    timeout: float = option(10.0, gt=0)
    """Seconds that one call may take; after that it is an error and its worker process is killed and replaced."""


@dataclass(kw_only=True)
class ExactConfig(RewardConfig):
    """1 when completion and reference are equal after normalising (see `rewards.text.normalise`)."""


@dataclass(kw_only=True)
class ContainsConfig(RewardConfig):
    """1 when the normalised reference occurs in the completion on word boundaries: `4` is not in `144`."""


@dataclass(kw_only=True)
class NumericConfig(RewardConfig):
    """1 when the last number of the completion equals the last number of the reference (see `rewards.number`)."""

    tolerance: float = option(1e-6, ge=0)
    """Largest difference, relative to the reference; 0 compares exactly."""


@dataclass(kw_only=True)
class RegexConfig(RewardConfig):
    """1 when the completion, taken as it is, matches a pattern."""

    pattern: str
    """Regular expression of Python's `re` module."""
    flags: list[RegexFlag] = field(default_factory=list)
    """Any of `ignorecase`, `multiline`, `dotall`, `verbose`, `ascii`."""
    mode: RegexMode = RegexMode.search
    """`search` anywhere, or `fullmatch` (no stripping: allow for white space with `\\s*`)."""

    def __post_init__(self) -> None:
        """Refuse a pattern that cannot be compiled, or an empty one, which matches everything."""
        super().__post_init__()
        if not self.pattern:
            raise ConfigError("pattern: is empty and would match everything")
        try:
            self.compiled()
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(f"pattern: {self.pattern!r} is not a regular expression: {error}") from None

    def compiled(self) -> re.Pattern[str]:
        """The pattern with its flags."""
        return re.compile(self.pattern, functools.reduce(operator.or_, (flag.value for flag in self.flags), re.NOFLAG))


@dataclass(kw_only=True)
class JsonConfig(RewardConfig):
    """1 when the completion is JSON (RFC 8259) and conforms to the schema, times the fraction of `keys` it has."""

    strict: bool = False
    """Refuse the one code fence that may otherwise surround the JSON."""
    keys: list[str] = field(default_factory=list)
    """Keys an object should have; the value is the fraction present (0 for anything but an object)."""
    schema: Any = None
    """JSON Schema: inline (a mapping), or the path of a JSON file."""
    schema_column: str | None = None
    """Column of the row that holds its JSON Schema (a mapping, or JSON text), in place of `schema`."""

    def __post_init__(self) -> None:
        """Refuse two schemas, and forms a schema cannot have."""
        super().__post_init__()
        _check_schema(self.schema, self.schema_column)
        if len(set(self.keys)) < len(self.keys):
            raise ConfigError(f"keys: names a key twice: {', '.join(self.keys)}")


@dataclass(kw_only=True)
class FieldsConfig(RewardConfig):
    """Extraction: the fraction of the reference's fields whose values agree with the completion's JSON object."""

    column: str | None = None
    """Column of the row with the right fields (a mapping, or JSON text); the row's reference when absent."""
    tolerance: float = option(1e-6, ge=0)
    """Largest difference of numbers, relative to the reference."""
    extra_penalty: float = option(0.0, ge=0)
    """What every key that is not in the reference costs; the value never falls below 0."""
    strict: bool = False
    """Refuse the one code fence that may otherwise surround the JSON."""


@dataclass(kw_only=True)
class ToolCallPoints:
    """What each stage of a tool call's score adds; a penalty is negative."""

    unparseable: float = -1.0
    """The completion is not JSON (or not in its tags); nothing else counts then."""
    parses: float = 0.2
    """It is JSON."""
    invalid: float = -0.5
    """It is no object, or does not conform to the schema; nothing else counts then."""
    valid: float = 0.3
    """It conforms."""
    known_tool: float = 0.2
    """The tool is one of the allowed."""
    invented_tool: float = -0.5
    """The tool is named, and is not one of the allowed."""
    expected_tool: float = 0.2
    """Task check: it is the expected tool."""
    expected_arguments: float = 0.1
    """Task check: times the fraction of the compared arguments that equal the expected ones."""
    handoff: float = 0.2
    """Task check: a hand-off was expected, and the tool is `handoff_tool`."""
    long: float = -0.1
    """The completion has more than `max_chars` characters."""


@dataclass(kw_only=True)
class ToolCallConfig(RewardConfig):
    """The staged score of a completion that should be one JSON tool call: the sum of the `points` that apply."""

    tools: list[str] = field(default_factory=list)
    """Names of the allowed tools; this or `tools_column`."""
    tools_column: str | None = None
    """Column of the row that lists its allowed tools: names, or definitions as chat templates take them."""
    schema: Any = None
    """JSON Schema of a call, for every row: inline (a mapping), or the path of a JSON file."""
    schema_column: str | None = None
    """Column of the row that holds its JSON Schema; `schema` when neither is given."""
    expected_column: str | None = "expected"
    """Column of the right call: `{tool: ..., <arguments beside it>}`, or as a completion; null: the row's reference."""
    arguments: list[str] | None = None
    """Names of the arguments to compare; every one that the completion or the expected call has, when absent."""
    task_checks: bool = True
    """Compare with the expected call; without, only form and tool name count, and no row needs an expected call."""
    handoff_tool: str = "handoff"
    """The tool that hands over to a person."""
    form: CallForm = CallForm.plain
    """`plain`: `{"tool", "args"}`; `tagged`: `<tool_call>{"name", "arguments"}</tool_call>`."""
    max_chars: int = option(800, ge=1)
    """Characters beyond which `points.long` applies."""
    points: ToolCallPoints = field(default_factory=ToolCallPoints)
    """What each stage adds."""

    def __post_init__(self) -> None:
        """Require one origin of the tools, at most one of the schema, and arguments that can be compared."""
        super().__post_init__()
        if bool(self.tools) == bool(self.tools_column):
            raise ConfigError("tools: give either tools (a list of names) or tools_column")
        if self.schema is None and self.schema_column is None:
            self.schema_column = "schema"
        _check_schema(self.schema, self.schema_column)
        if self.arguments is not None and (not self.arguments or len(set(self.arguments)) < len(self.arguments)):
            raise ConfigError("arguments: names no argument, or one twice; leave it out to compare all of them")


@dataclass(kw_only=True)
class MathConfig(IsolatedConfig):
    """1 when the completion's last mathematical expression is equivalent to the reference, by math-verify.

    An expression may keep the library busy until the time limit, which is an error as everywhere; `on_error: score`
    with `error_value: 0` keeps a run going.
    """

    decimals: int = option(6, ge=0, le=15)
    """Decimal places to which numbers are rounded where one of the two is written with a decimal point."""


@dataclass(kw_only=True)
class LengthConfig(RewardConfig):
    """1 for `min_chars` to `max_chars` characters, falling linearly to 0: n / min below, 0 at twice the maximum."""

    min_chars: int | None = option(None, ge=0)
    """Fewest characters worth 1; shorter completions get n / min_chars."""
    max_chars: int | None = option(None, ge=1)
    """Most characters worth 1; longer completions get 2 - n / max_chars, at least 0."""

    def __post_init__(self) -> None:
        """Require a bound, and bounds in order."""
        super().__post_init__()
        if self.min_chars is None and self.max_chars is None:
            raise ConfigError("max_chars: is required, unless there is min_chars")
        if self.min_chars is not None and self.max_chars is not None and self.min_chars > self.max_chars:
            raise ConfigError(f"min_chars: must be at most max_chars ({self.max_chars}), got {self.min_chars}")


@dataclass(kw_only=True)
class KeywordConfig(RewardConfig):
    """Whether words occur in the completion, on word boundaries, in any case."""

    words: list[str]
    """Words or phrases."""
    mode: KeywordMode = KeywordMode.any
    """`any`: 1 when one occurs; `all`: the fraction that occur; `none`: 1 when none occurs."""

    def __post_init__(self) -> None:
        """Refuse no words, and blank ones, which occur everywhere."""
        super().__post_init__()
        if not self.words or not all(word.strip() for word in self.words):
            raise ConfigError("words: needs at least one word, and none of them blank")


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


TYPES: dict[str, type[RewardConfig]] = {
    "exact": ExactConfig,
    "contains": ContainsConfig,
    "numeric": NumericConfig,
    "regex": RegexConfig,
    "json": JsonConfig,
    "fields": FieldsConfig,
    "length": LengthConfig,
    "keyword": KeywordConfig,
    "tool_call": ToolCallConfig,
    "math": MathConfig,
    "command": CommandConfig,
    "gym": GymConfig,
    "custom": CustomConfig,
}
"""The settings of every reward type."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def load_rewards(values: Any, where: str = "reward") -> dict[str, RewardConfig]:
    """A reward set: names to settings.

    Raises:
        ConfigError: The set is empty, a name or type cannot be used, a setting is wrong, or all weights are zero.
    """
    if not isinstance(values, Mapping) or not values:
        raise ConfigError(f"{where}: expected a mapping of names to rewards, e.g. numeric: {{type: numeric}}")
    rewards: dict[str, RewardConfig] = {}
    for name, settings in values.items():
        key = f"{where}.{name}"
        _check_name(str(name), rewards, key)
        kind = settings.get("type") if isinstance(settings, Mapping) else None
        if not isinstance(kind, str) or kind not in TYPES:
            raise ConfigError(f"{key}: needs a type, one of {', '.join(sorted(TYPES))}; got {kind!r}")
        rewards[str(name)] = load(TYPES[kind], settings, key)
    if all(reward.weight == 0 for reward in rewards.values()):
        raise ConfigError(f"{where}: every weight is zero, so nothing is rewarded; give one reward a weight")
    return rewards


def _check_schema(schema: Any, column: str | None) -> None:
    """Refuse two schemas, and forms a schema cannot have."""
    if schema is not None and column is not None:
        raise ConfigError("schema_column: stands in place of schema; give one of them")
    if schema is not None and not isinstance(schema, str | Mapping):
        raise ConfigError(f"schema: expected a JSON Schema (a mapping) or the path of one, got {schema!r}")


def _check_name(name: str, taken: Mapping[str, Any], key: str) -> None:
    """A reward's name becomes metrics, `reward_<name>` and `failed_<name>`, beside `reward_std` and `failed_scores`."""
    if not _NAME.fullmatch(name) or name in ("std", "scores"):
        raise ConfigError(f"{key}: a reward cannot be called that; use letters, digits, _ . - (not std, scores)")
    if name in taken:
        raise ConfigError(f"{key}: two rewards are called {name!r}; names must be unique")
