"""Reward `keyword`: words that should occur in the completion, or should not."""

from conf.text_rewards import KeywordConfig, KeywordMode
from rewards.contract import Reward, Sample, Value
from rewards.text import fold, occurs


def keyword(config: KeywordConfig) -> Reward:
    """By `mode`: 1 when any word occurs; the fraction that occur; 1 when none occurs. Case and width do not matter."""
    words = list(dict.fromkeys(fold(word) for word in config.words))

    def reward(sample: Sample) -> Value:
        text = fold(sample.completion)
        found = [word for word in words if occurs(word, text)]
        explanation = f"has {', '.join(found) or 'none of the words'}"
        if config.mode is KeywordMode.all:
            return Value(len(found) / len(words), f"{explanation} ({len(found)} of {len(words)})")
        return Value(float(bool(found) == (config.mode is KeywordMode.any)), explanation)

    return reward
