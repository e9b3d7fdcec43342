"""The two ways in which a reward is called: in this process, or in worker processes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from conf.rewards import IsolatedConfig, RewardConfig
from rewards.contract import Outcome, Reward, RewardError, Sample, finite
from rewards.library import build
from rewards.workers import WorkerPool


class Caller(Protocol):
    """What `rewards.scoring` needs of a reward."""

    def check(self) -> None:
        """Wait until it can be called; a ConfigError when it never will be."""

    def judge(self, samples: Sequence[Sample], until_failure: bool = False) -> list[Outcome]:
        """The outcomes in order, or those up to the first failure."""

    def close(self) -> None:
        """End what it has started."""


class InProcess:
    """A reward that costs little and cannot hang."""

    def __init__(self, reward: Reward) -> None:
        self._reward = reward

    def check(self) -> None:
        """It can be called."""

    def close(self) -> None:
        """It has started nothing."""

    def judge(self, samples: Sequence[Sample], until_failure: bool = False) -> list[Outcome]:
        """One after the other."""
        outcomes: list[Outcome] = []
        for sample in samples:
            outcomes.append(self._outcome(sample))
            if until_failure and isinstance(outcomes[-1], RewardError):
                break
        return outcomes

    def _outcome(self, sample: Sample) -> Outcome:
        try:
            value = self._reward(sample)
            return replace(value, value=finite(value.value))
        except RewardError as error:
            return error
        except Exception as error:
            return RewardError(f"{type(error).__name__}: {error}")


def caller(config: RewardConfig, folder: Path | None) -> Caller:
    """The way a reward of these settings is called.

    Raises:
        ConfigError: A file it needs cannot be used; the message starts with the setting's name.
    """
    return WorkerPool(config, folder) if isinstance(config, IsolatedConfig) else InProcess(build(config, folder))
