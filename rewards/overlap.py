"""Reward `overlap`: how many words completion and reference have in common."""

from collections import Counter

from conf.text_rewards import OverlapConfig
from rewards.contract import Reward, RewardError, Sample, Value, reference_text
from rewards.text import words


def overlap(config: OverlapConfig) -> Reward:
    """F1 of the words, each as often as it stands there; their order does not matter.

    The harmonic mean of precision (words of the completion that the reference has) and recall (words of the reference
    that the completion has), as SQuAD scores answers (Rajpurkar et al., 2016); but no word is left out.
    """

    def reward(sample: Sample) -> Value:
        expected, got = Counter(words(reference_text(sample))), Counter(words(sample.completion))
        if not expected:
            raise RewardError("the reference has no words")
        common, written, wanted = (expected & got).total(), got.total(), expected.total()
        explanation = f"{common} words in common, of {written} written and {wanted} wanted"
        return Value(2 * common / (written + wanted), explanation)

    return reward
