"""The samples of one call on their way through worker processes: what is still to do, and what has come back."""

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rewards.contract import Outcome, RewardError, Sample, Value


class Batch:
    """Tasks to hand out, and outcomes as they come in.

    Args:
        samples: What to judge.
        share: Samples per task. A task that fails is repeated sample by sample, to find the one at fault.
        until_failure: Give up what comes after the first failure.

    Attributes:
        tasks: Which samples to send together, in order.
        lines: The samples as JSON.
    """

    def __init__(self, samples: Sequence[Sample], share: int, until_failure: bool) -> None:
        self._until_failure = until_failure
        self._end = len(samples)
        self._outcomes: dict[int, Outcome] = {}
        self.lines: dict[int, bytes] = {}
        self.tasks: deque[Sequence[int]] = deque()
        for index, sample in enumerate(samples):
            try:
                self.lines[index] = _line(sample)
            except RewardError as error:
                self._settle(index, error)
        sent = [index for index in self.lines if index < self._end]
        self.tasks.extend(sent[start : start + share] for start in range(0, len(sent), share))

    def waits_for(self, tasks: Iterable[Sequence[int] | None]) -> bool:
        """Whether there is more to do, beside or among the tasks that are being done."""
        return bool(self.tasks) or any(task and task[0] < self._end for task in tasks)

    def take(self, task: Sequence[int], answer: Mapping[str, Any]) -> None:
        """Note what a worker answered to a task."""
        if "error" in answer:
            self.fail(task, answer["error"])
            return
        for index, outcome in zip(task, answer["outcomes"], strict=True):
            self._settle(index, RewardError(outcome) if isinstance(outcome, str) else Value(*outcome))

    def fail(self, task: Sequence[int], reason: str) -> None:
        """Note that a task failed as a whole: the fault of its sample, or one of several."""
        if len(task) > 1:
            self.tasks.extendleft([index] for index in reversed(task))
        else:
            self._settle(task[0], RewardError(reason))

    def fail_rest(self, reason: str) -> None:
        """Note that nothing more can be done."""
        for task in self.tasks:
            for index in task:
                self._outcomes[index] = RewardError(reason)
        self.tasks.clear()

    def outcomes(self) -> list[Outcome]:
        """One per sample, or up to the first failure."""
        return [self._outcomes[index] for index in sorted(self._outcomes) if index <= self._end]

    def _settle(self, index: int, outcome: Outcome) -> None:
        self._outcomes[index] = outcome
        if self._until_failure and isinstance(outcome, RewardError):
            self._end = min(self._end, index)
            while self.tasks and self.tasks[-1][0] > self._end:
                self.tasks.pop()


def _line(sample: Sample) -> bytes:
    try:
        return json.dumps([sample.prompt, sample.completion, sample.reference, dict(sample.row)]).encode()
    except (TypeError, ValueError, RecursionError):
        raise RewardError(_unsendable(sample)) from None


def _unsendable(sample: Sample) -> str:
    for what, value in [("reference", sample.reference), *((f"column {name!r}", v) for name, v in sample.row.items())]:
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            return (
                f"the {what} cannot be sent to the reward's worker process, which gets JSON: {error}; "
                "make it text or a number"
            )
    return "the row cannot be sent to the reward's worker process as JSON: its columns need names"
