"""Every reward type by name: one line here, one module, one dataclass in `conf.rewards`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from conf.reward_base import RewardConfig
from rewards.command import command
from rewards.contains import contains
from rewards.contract import Reward
from rewards.custom import custom
from rewards.exact import exact
from rewards.fields import fields
from rewards.gym import gym
from rewards.json import json
from rewards.keyword import keyword
from rewards.length import length
from rewards.math import math
from rewards.numeric import numeric
from rewards.overlap import overlap
from rewards.regex import regex
from rewards.tool_call import tool_call

BUILDERS: dict[str, Callable[[Any], Reward]] = {
    "exact": exact,
    "contains": contains,
    "overlap": overlap,
    "numeric": numeric,
    "regex": regex,
    "fields": fields,
    "length": length,
    "keyword": keyword,
    "math": math,
    "gym": gym,
}
"""Rewards that need nothing but their settings."""

FILE_BUILDERS: dict[str, Callable[[Any, Path | None], Reward]] = {
    "json": json,
    "tool_call": tool_call,
    "command": command,
    "custom": custom,
}
"""Rewards whose settings may name files, relative to a folder."""


def build(config: RewardConfig, folder: Path | None = None) -> Reward:
    """The scoring closure of a reward.

    Raises:
        ConfigError: A file it needs cannot be used; the message starts with the setting's name.
    """
    if config.type in FILE_BUILDERS:
        return FILE_BUILDERS[config.type](config, folder)
    return BUILDERS[config.type](config)
