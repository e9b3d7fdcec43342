"""What the settings of every reward have in common."""

import enum
from dataclasses import dataclass

from conf.errors import ConfigError
from conf.options import option

LARGEST = 1e30
"""Weighted values beyond this leave float32, in which trainers hold them."""


class OnError(enum.Enum):
    """What becomes of a reward that fails: stop the work, or score a stated value (counted and shown)."""

    stop = "stop"
    score = "score"


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
        if abs((self.error_value or 0.0) * self.weight) > LARGEST:
            raise ConfigError(f"error_value: is too large to train on: {self.error_value:g} x weight {self.weight:g}")


@dataclass(kw_only=True)
class IsolatedConfig(RewardConfig):
    """A reward that may hang or crash, and so is called in worker processes of its own (see `rewards.workers`)."""

    timeout: float = option(10.0, gt=0)
    """Seconds that one call may take; after that it is an error and its worker process is killed and replaced."""
