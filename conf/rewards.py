"""The typed settings of every reward type, and the door through which a `rewards.yaml` or a reward set comes in.

One dataclass per `type`; `rewards.library` has one function for each. Standard library only: what needs more (whether
a JSON Schema is valid, whether a custom file can be imported) is checked when `rewards.scoring.RewardSet` is made.
"""

import re
from collections.abc import Mapping
from typing import Any

from conf.code_rewards import CommandConfig, CustomConfig, GymConfig, MathConfig
from conf.errors import ConfigError
from conf.loader import load
from conf.reward_base import RewardConfig
from conf.structured_rewards import FieldsConfig, JsonConfig, ToolCallConfig
from conf.text_rewards import (
    ContainsConfig,
    ExactConfig,
    KeywordConfig,
    LengthConfig,
    NumericConfig,
    OverlapConfig,
    RegexConfig,
)

TYPES: dict[str, type[RewardConfig]] = {
    "exact": ExactConfig,
    "contains": ContainsConfig,
    "overlap": OverlapConfig,
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
        if kind == "judge":
            raise ConfigError(
                f"{key}: a judge is no reward: nothing is trained on it; it scores a suite (suite.<name>.judge)"
            )
        if not isinstance(kind, str) or kind not in TYPES:
            raise ConfigError(f"{key}: needs a type, one of {', '.join(sorted(TYPES))}; got {kind!r}")
        rewards[str(name)] = load(TYPES[kind], settings, key)
    if all(reward.weight == 0 for reward in rewards.values()):
        raise ConfigError(f"{where}: every weight is zero, so nothing is rewarded; give one reward a weight")
    return rewards


def _check_name(name: str, taken: Mapping[str, Any], key: str) -> None:
    """A reward's name becomes metrics, `reward_<name>` and `failed_<name>`, beside `reward_std` and `failed_scores`."""
    if not _NAME.fullmatch(name) or name in ("std", "scores"):
        raise ConfigError(f"{key}: a reward cannot be called that; use letters, digits, _ . - (not std, scores)")
    if name in taken:
        raise ConfigError(f"{key}: two rewards are called {name!r}; names must be unique")
