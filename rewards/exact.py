"""Reward `exact`: completion and reference are the same text after normalising."""

from conf.text_rewards import ExactConfig
from rewards.contract import Reward, Sample, Value, reference_text, shown
from rewards.text import normalise


def exact(config: ExactConfig) -> Reward:
    """1 when equal after `normalise`, else 0. An empty reference equals an empty completion only."""

    def reward(sample: Sample) -> Value:
        got, expected = normalise(sample.completion), normalise(reference_text(sample))
        if got == expected:
            return Value(1.0, f"equal: {shown(expected)}")
        return Value(0.0, f"{shown(got)} is not {shown(expected)}")

    return reward
