"""The shape of every reward: a closure from one sample to one value with an explanation.

`rewards.library` makes the closures from their settings, `rewards.scoring` calls and sums them.
"""

import math
import numbers
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conf.errors import UserError


@dataclass(frozen=True, slots=True)
class Sample:
    """What a reward judges.

    Attributes:
        prompt: The prompt as text.
        completion: The reply to judge.
        reference: The right answer with its own type; None when there is none.
        row: The other columns of the row, with their own types.
    """

    prompt: str
    completion: str
    reference: Any
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Value:
    """What a reward says.

    Attributes:
        value: The number.
        explanation: Why, for a person.
        terms: For a value that is a sum, what each term that counted adds to it, by name; else empty.
    """

    value: float
    explanation: str
    terms: Mapping[str, float] = field(default_factory=dict)


Reward = Callable[[Sample], Value]
"""Pure: the same sample gives the same value. Raises when it cannot judge; a failure is never a 0."""


class RewardError(UserError):
    """A sample that a reward cannot judge: a missing reference, a value that is not a finite number, an exception."""


Outcome = Value | RewardError
"""What becomes of one sample: a value, or why there is none."""


class BatchReward(ABC):
    """A reward that judges several samples in one call."""

    @abstractmethod
    def batch(self, samples: Sequence[Sample]) -> list[Outcome]:
        """One outcome per sample, in order.

        Raises:
            RewardError: The call as a whole failed.
        """

    def __call__(self, sample: Sample) -> Value:
        """Judge a sample alone, which makes this a `Reward`."""
        outcome = self.batch([sample])[0]
        if isinstance(outcome, RewardError):
            raise outcome
        return outcome


def finite(value: Any) -> float:
    """A value as a float: any real number, true (1) and false (0) included; nothing else, and nothing infinite.

    Raises:
        RewardError: It is something else.
    """
    if not isinstance(value, numbers.Real):
        raise RewardError(f"the value is not a number: {shown(value)} ({type(value).__name__})")
    try:
        number = float(value)
    except OverflowError as error:
        raise RewardError(f"the value is not finite: OverflowError: {error}") from None
    if not math.isfinite(number):
        raise RewardError(f"the value is not finite: {number}")
    return number


def description(error: BaseException) -> str:
    """Type, message and the last line of code that an exception reached."""
    frames = traceback.extract_tb(error.__traceback__)
    says_itself = isinstance(error, SyntaxError)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames and not says_itself else ""
    return f"{type(error).__name__}: {error}{place}"


def reference_text(sample: Sample) -> str:
    """The reference as text, for rewards that compare texts; numbers and true/false are written out.

    Raises:
        RewardError: There is none, or it is a list or a mapping.
    """
    reference = sample.reference
    if reference is None:
        raise RewardError("the reference is missing")
    if not isinstance(reference, str | int | float):
        raise RewardError(f"the reference is a {type(reference).__name__}; this reward needs text or a number")
    return str(reference)


def shown(value: Any, limit: int = 80) -> str:
    """A value as it stands in explanations and messages, cut to `limit` characters."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or an integer of thousands of digits
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= limit else text[: limit - 3] + "..."
