"""The ways in which a reward is called: in this process, in threads of it, or in worker processes."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from conf.reward_base import IsolatedConfig, RewardConfig
from rewards.contract import Outcome, Reward, RewardError, Sample, finite
from rewards.library import build
from rewards.workers import LIMIT, WorkerPool

WAITING_TYPES = frozenset({"command"})
"""Rewards that wait for something else; types that need a process of their own have an `IsolatedConfig`."""


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


class InThreads(InProcess):
    """A reward that spends its time waiting, such as for a program that it runs; several calls wait together."""

    def __init__(self, reward: Reward) -> None:
        super().__init__(reward)
        self._threads = ThreadPoolExecutor(LIMIT, thread_name_prefix="reward")

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)

    def judge(self, samples: Sequence[Sample], until_failure: bool = False) -> list[Outcome]:
        """Several at once."""
        futures = [self._threads.submit(self._outcome, sample) for sample in samples]
        outcomes: list[Outcome] = []
        try:
            for future in futures:
                outcomes.append(future.result())
                if until_failure and isinstance(outcomes[-1], RewardError):
                    break
        finally:
            for future in futures:
                future.cancel()
        return outcomes


def caller(config: RewardConfig, folder: Path | None) -> Caller:
    """The way a reward of these settings is called.

    Raises:
        ConfigError: A file it needs cannot be used; the message starts with the setting's name.
    """
    if isinstance(config, IsolatedConfig):
        return WorkerPool(config, folder)
    return (InThreads if config.type in WAITING_TYPES else InProcess)(build(config, folder))
