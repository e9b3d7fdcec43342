"""Reward `numeric`: the last number of the completion is the right one."""

from fractions import Fraction

from conf.text_rewards import NumericConfig
from rewards.contract import Reward, RewardError, Sample, Value, shown
from rewards.number import close, exactly, last_number, written


def numeric(config: NumericConfig) -> Reward:
    """1 when the completion's last number is within `tolerance` (relative) of the reference's last number, else 0."""

    def reward(sample: Sample) -> Value:
        if sample.reference is None:
            raise RewardError("the reference is missing")
        expected = exactly(sample.reference)
        if not isinstance(expected, Fraction):
            raise RewardError(f"the reference has no (finite) number: {shown(sample.reference)}")
        got = last_number(sample.completion)
        if got is None:
            return Value(0.0, "no number in the completion")
        agrees = close(got, expected, config.tolerance)
        return Value(float(agrees), f"{written(got)} {'equals' if agrees else 'is not'} {written(expected)}")

    return reward
