"""The settings of rewards that look at a completion as text."""

import enum
import functools
import operator
import re
from dataclasses import dataclass, field

from conf.errors import ConfigError
from conf.options import option
from conf.reward_base import RewardConfig


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


@dataclass(kw_only=True)
class ExactConfig(RewardConfig):
    """1 when completion and reference are equal after normalising (see `rewards.text.normalise`)."""


@dataclass(kw_only=True)
class ContainsConfig(RewardConfig):
    """1 when the normalised reference occurs in the completion on word boundaries: `4` is not in `144`."""


@dataclass(kw_only=True)
class OverlapConfig(RewardConfig):
    """F1 of the words that completion and reference share: 1 for the same words, 0 for none in common."""


@dataclass(kw_only=True)
class NumericConfig(RewardConfig):
    """1 when the last number of the completion equals the last number of the reference (see `rewards.number`)."""

    tolerance: float = option(1e-6, ge=0)
    """Largest difference, relative to the reference; 0 compares exactly."""


@dataclass(kw_only=True)
class RegexConfig(RewardConfig):
    """1 when the completion, taken as it is, matches a pattern; `pattern` or `pattern_column` is required."""

    pattern: str | None = None
    """Regular expression of Python's `re` module, for every row."""
    pattern_column: str | None = None
    """Column of the row that holds its pattern, in place of `pattern`."""
    flags: list[RegexFlag] = field(default_factory=list)
    """Any of `ignorecase`, `multiline`, `dotall`, `verbose`, `ascii`."""
    mode: RegexMode = RegexMode.search
    """`search` anywhere, or `fullmatch` (no stripping: allow for white space with `\\s*`)."""

    def __post_init__(self) -> None:
        """Refuse a pattern that cannot be compiled, or an empty one, which matches everything."""
        super().__post_init__()
        if (self.pattern is None) == (not self.pattern_column):
            raise ConfigError(
                "pattern: give either pattern (for every row) or pattern_column (a column with the row's)"
            )
        if self.pattern is not None:
            self.compiled(self.pattern)

    def compiled(self, pattern: str) -> re.Pattern[str]:
        """A pattern with the flags.

        Raises:
            ConfigError: It is empty, or no regular expression; the message starts with `pattern`.
        """
        if not pattern:
            raise ConfigError("pattern: is empty and would match everything")
        try:
            return re.compile(pattern, functools.reduce(operator.or_, (flag.value for flag in self.flags), re.NOFLAG))
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(f"pattern: {pattern!r} is not a regular expression: {error}") from None


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
