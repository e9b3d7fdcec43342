"""Reward `regex`: the completion matches a pattern."""

from conf.text_rewards import RegexConfig, RegexMode
from rewards.contract import Reward, Sample, Value, shown


def regex(config: RegexConfig) -> Reward:
    """1 when the pattern matches (anywhere, or the whole completion, by `mode`), else 0."""
    pattern = config.compiled()
    match = pattern.fullmatch if config.mode is RegexMode.fullmatch else pattern.search

    def reward(sample: Sample) -> Value:
        found = match(sample.completion)
        if found is None:
            return Value(0.0, f"no match for {shown(config.pattern)}")
        return Value(1.0, f"matches at {found.start()}: {shown(found.group())}")

    return reward
