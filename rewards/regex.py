"""Reward `regex`: the completion matches a pattern, the same for all rows or each row's own."""

import functools
import re

from conf.errors import ConfigError
from conf.text_rewards import RegexConfig, RegexMode
from rewards.contract import Reward, RewardError, Sample, Value, shown

_KEPT_PATTERNS = 4096


def regex(config: RegexConfig) -> Reward:
    """1 when the pattern matches (anywhere, or the whole completion, by `mode`), else 0."""
    compiled = functools.lru_cache(_KEPT_PATTERNS)(config.compiled)

    def reward(sample: Sample) -> Value:
        pattern = compiled(config.pattern) if config.pattern is not None else _of_row(sample)
        match = pattern.fullmatch if config.mode is RegexMode.fullmatch else pattern.search
        found = match(sample.completion)
        if found is None:
            return Value(0.0, f"no match for {shown(pattern.pattern)}")
        return Value(1.0, f"matches at {found.start()}: {shown(found.group())}")

    def _of_row(sample: Sample) -> re.Pattern[str]:
        text = sample.row.get(str(config.pattern_column))
        if not isinstance(text, str):
            raise RewardError(f"the row has no pattern in its column {config.pattern_column!r}, but {shown(text)}")
        try:
            return compiled(text)
        except ConfigError as error:
            raise RewardError(f"column {config.pattern_column!r}: {error}") from None

    return reward
