"""Rewards that may hang or crash, called in worker processes: killed when they take too long, replaced when they die.

A sample crosses as JSON, and so does what comes back. One worker is started at once, to find out whether the reward can
be loaded; further ones when samples have been waiting. An outcome does not depend on how many there are.
"""

import json
import os
import select
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from conf.errors import ConfigError
from conf.loader import dump
from conf.reward_base import IsolatedConfig
from rewards.batch import Batch
from rewards.contract import Outcome, Sample
from rewards.worker import Worker, WorkerDied

LIMIT = min(8, os.cpu_count() or 1)
"""Most workers of one reward."""

PATIENCE = 0.05
"""Seconds that samples wait for a worker before another one is started."""


class WorkerPool:
    """The workers of one reward. Without `close` they end with this object, and with this process at the latest.

    Args:
        config: The reward's settings.
        folder: What relative paths in them are relative to; the current directory when None.
        limit: Most workers.

    Raises:
        ConfigError: The settings cannot be sent, or the worker cannot be started.
    """

    def __init__(self, config: IsolatedConfig, folder: Path | None, limit: int = LIMIT) -> None:
        self._timeout, self._limit = config.timeout, limit
        self._share = 1
        self._lock = threading.Lock()
        self._workers: list[Worker] = []
        weakref.finalize(self, _kill_all, self._workers, os.getpid())
        try:
            opening = json.dumps({**dump({"config": config}), "folder": str((folder or Path()).absolute())})
        except (TypeError, ValueError) as error:
            raise ConfigError(f"args: hold what JSON cannot: {error}") from None
        self._opening = opening.encode() + b"\n"
        try:
            self._workers.append(Worker(self._opening))
        except WorkerDied as error:
            raise ConfigError(str(error)) from None

    def close(self) -> None:
        """End the workers."""
        _kill_all(self._workers, os.getpid())

    def check(self) -> None:
        """Wait until the reward is loaded, right after this was made.

        Raises:
            ConfigError: It cannot be loaded.
        """
        (worker,) = self._workers
        try:
            while not worker.ready:
                _wait([worker], worker.deadline)
                self._hear(worker)
        except WorkerDied as error:
            self.close()
            raise ConfigError(str(error)) from None

    def judge(self, samples: Sequence[Sample], until_failure: bool = False) -> list[Outcome]:
        """The outcomes of the samples, in order.

        Args:
            samples: What to judge.
            until_failure: Leave out what comes after the first failure.
        """
        with self._lock:
            batch = Batch(samples, self._share, until_failure)
            try:
                self._work(batch)
            except BaseException:
                self.close()
                raise
            for worker in [worker for worker in self._workers if worker.task]:
                self._discard(worker)  # it is busy with a sample after the first failure
            return batch.outcomes()

    def _work(self, batch: Batch) -> None:
        since = time.monotonic()
        while batch.waits_for(worker.task for worker in self._workers):
            self._assign(batch)
            loading = sum(not worker.ready for worker in self._workers)
            room = len(self._workers) < self._limit and loading < len(batch.tasks)
            if room and (not self._workers or time.monotonic() - since >= PATIENCE):
                since = time.monotonic()
                self._start(batch)
            busy = [worker for worker in self._workers if worker.task or not worker.ready]
            _wait(busy, min([worker.deadline for worker in busy] + [since + PATIENCE] * room, default=0))
            for worker in busy:
                self._serve(worker, batch)

    def _assign(self, batch: Batch) -> None:
        for worker in list(self._workers):
            if worker.ready and not worker.task and batch.tasks:
                if worker.alive:
                    task = batch.tasks.popleft()
                    worker.ask(task, [batch.lines[index] for index in task], self._timeout)
                else:
                    self._discard(worker)

    def _start(self, batch: Batch) -> None:
        try:
            self._workers.append(Worker(self._opening))
        except WorkerDied as error:
            self._not_started(batch, str(error))

    def _serve(self, worker: Worker, batch: Batch) -> None:
        try:
            if worker.ready:
                answer = worker.answer()
                if answer is not None:
                    batch.take(worker.task or (), answer)
                    worker.task = None
            else:
                self._hear(worker)
        except WorkerDied as error:
            self._discard(worker)
            if worker.task:
                batch.fail(worker.task, str(error))
            else:
                self._not_started(batch, str(error))

    def _hear(self, worker: Worker) -> None:
        """Read whether the reward is loaded."""
        try:
            answer = worker.answer()
        except WorkerDied as error:
            raise WorkerDied(f"{error}, while the reward was loaded") from None
        if answer is not None:
            if "config_error" in answer:
                raise WorkerDied(answer["config_error"])
            self._share = answer["ready"]
            worker.ready = True

    def _not_started(self, batch: Batch, reason: str) -> None:
        """Go on with the other workers, or fail what is left when there are none."""
        if self._workers:
            self._limit = len(self._workers)
        else:
            batch.fail_rest(reason)

    def _discard(self, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.kill()


def _wait(workers: Sequence[Worker], until: float) -> None:
    """Until a pipe can be moved, or the time comes."""
    poll = select.poll()
    for worker in workers:
        worker.register(poll)
    poll.poll(max(0.0, until - time.monotonic()) * 1000)


def _kill_all(workers: list[Worker], owner: int) -> None:
    while workers and os.getpid() == owner:  # not from a fork, which has a copy of the list
        workers.pop().kill()
