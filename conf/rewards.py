"""The typed settings of every reward type, and the door through which a `rewards.yaml` or a reward set comes in.

One dataclass per `type`; `rewards.library` has one function for each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conf.errors import ConfigError
from conf.loader import load
from conf.options import option


@dataclass
class RewardConfig:
    """What every reward has."""

    type: str = option()
    """Which reward."""
    weight: float = 1.0
    """Factor of its value in the total; may be negative, not zero for all rewards of a set."""


@dataclass
class NumericConfig(RewardConfig):
    """1 when the last number of the completion equals the last number of the reference."""

    tolerance: float = option(1e-6, ge=0)
    """Relative tolerance."""


TYPES: dict[str, type[RewardConfig]] = {"numeric": NumericConfig}


def load_rewards(values: Any, where: str = "reward") -> dict[str, RewardConfig]:
    """A reward set: names to settings.

    Raises:
        ConfigError: The set is empty, a type is unknown, or a setting of a reward is wrong.
    """
    if not isinstance(values, Mapping) or not values:
        raise ConfigError(f"{where}: expected a mapping of names to rewards, e.g. numeric: {{type: numeric}}")
    rewards = {}
    for name, settings in values.items():
        key = f"{where}.{name}"
        kind = settings.get("type") if isinstance(settings, Mapping) else None
        if kind not in TYPES:
            raise ConfigError(f"{key}: needs a type, one of {', '.join(sorted(TYPES))}; got {kind!r}")
        rewards[str(name)] = load(TYPES[kind], settings, key)
    return rewards
