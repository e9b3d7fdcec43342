"""Reward `length`: the completion is neither too short nor too long."""

from conf.text_rewards import LengthConfig
from rewards.contract import Reward, Sample, Value


def length(config: LengthConfig) -> Reward:
    """1 within the bounds; n / min_chars below; above, linear from 1 at max_chars to 0 at twice that.

    Characters are Unicode code points of the completion as it is, white space included.
    """
    least, most = config.min_chars or 0, config.max_chars

    def reward(sample: Sample) -> Value:
        count = len(sample.completion)
        if count < least:
            return Value(count / least, f"{count} characters, below {least}")
        if most is not None and count > most:
            return Value(max(0.0, 2.0 - count / most), f"{count} characters, above {most}")
        return Value(1.0, f"{count} characters")

    return reward
