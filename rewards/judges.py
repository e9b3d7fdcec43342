"""The ways in which a reward is called: in this process, in several threads of it, or in worker processes."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from conf.rewards import CommandConfig, IsolatedConfig, RewardConfig
from rewards.contract import Outcome, Reward, RewardError, Sample, finite
from rewards.library import build
from rewards.workers import LIMIT, WorkerPool


class Judge(Protocol):
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


class Threaded(InProcess):
    """A reward that waits for a program of its own at every call."""

    def __init__(self, reward: Reward) -> None:
        super().__init__(reward)
        self._threads = ThreadPoolExecutor(LIMIT, thread_name_prefix="reward")

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def judge(self, samples: Sequence[Sample], until_failure: bool = False) -> list[Outcome]:
        """Several at once."""
        return list(self._threads.map(self._outcome, samples))


def judge(config: RewardConfig, folder: Path | None) -> Judge:
    """The way a reward of these settings is called.

    Raises:
        ConfigError: A file it needs cannot be used; the message starts with the setting's name.
    """
    if isinstance(config, IsolatedConfig):
        return WorkerPool(config, folder)
    reward = build(config, folder)
    return Threaded(reward) if isinstance(config, CommandConfig) else InProcess(reward)
