"""Reward `contains`: the reference stands somewhere in the completion, as words of its own."""

from conf.text_rewards import ContainsConfig
from rewards.contract import Reward, RewardError, Sample, Value, reference_text, shown
from rewards.text import fold, normalise, occurs


def contains(config: ContainsConfig) -> Reward:
    """1 when the normalised reference occurs on word boundaries, else 0.

    The completion is only folded: dropping its last punctuation could not make anything match.
    """

    def reward(sample: Sample) -> Value:
        expected = normalise(reference_text(sample))
        if not expected:
            raise RewardError("the reference is empty and would be contained in everything")
        if occurs(expected, fold(sample.completion)):
            return Value(1.0, f"contains {shown(expected)}")
        return Value(0.0, f"does not contain {shown(expected)}")

    return reward
