"""Steps of one pipeline that do not wait for each other, side by side: while the flow does one, workers make others.

A worker runs the pipeline as far as one step, as if that were a cell of a sweep. The flow comes to that step in its own
time, waits while the worker is at it, and takes what it finds in the store; what a worker does not finish, the flow
does itself.
"""

import multiprocessing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner

from conf.errors import UserError
from conf.loader import dump
from conf.run import RunConfig, load_run
from conf.steps import STAGES
from flows.execute import PipelineRun
from flows.prefect_server import shared_server

if TYPE_CHECKING:
    from flows.workers.runners import Workers

FOLDER = "branches"
"""In the run's folder: what the workers would have written to the terminal."""


class Branches:
    """Sends steps to workers.

    Args:
        run: The run whose steps they are.
        workers: Who makes them.
        runner: Their task runner, which has been entered.
    """

    def __init__(self, run: PipelineRun, workers: "Workers", runner: TaskRunner[Any]) -> None:
        self._run, self._workers, self._runner = run, workers, runner
        self._sent: dict[str, PrefectFuture[Any]] = {}
        self._busy: set[str] = set()

    def begin_beside(self, name: str) -> None:
        """Have steps begun for which all is there, while the flow does the one with this name."""
        for other in self._run.config.steps:
            if len(self._busy) < self._workers.beside and other not in {name, *self._sent} and self._is_ready(other):
                self._send(other)

    def close(self) -> None:
        """See to it that no worker does anything for the run any more."""
        stopping = self._run.stop.requested()
        if stopping:
            self._run.stop.pass_on()  # they keep what they have done
        for name, future in self._sent.items():
            if stopping or name in self._run.results:
                future.wait()
        if any(name not in self._run.results for name in self._busy):  # the run failed, or goes no further
            for process in multiprocessing.active_children():
                process.kill()

    def _is_ready(self, name: str) -> bool:
        """Whether there is something to compute, and all that it takes."""
        run, step = self._run, self._run.config.steps[name]
        if name in run.results or not STAGES[step.stage].computes or step.stage == "gate":
            return False
        if any(need not in run.results for need in [*step.needs(), *run.workspace.askers(name)]):
            return False
        if run.workspace.held_by(name, run.results) or not run.workspace.is_due(name, run.results):
            return False
        return run.workspace.entry(run.workspace.inputs(name, run.results)).result() is None

    def _send(self, name: str) -> None:
        from flows.sweeps.flow import run_cell

        run = self._run
        try:
            config = as_far_as(run.config, name)
        except UserError:  # the pipeline cannot be cut there; the flow comes to the step by itself
            return
        output = run.record.folder / FOLDER / f"{name}.txt"
        cell = {
            "config": dump(config.sections),
            "overrides": list(run.record.values["overrides"]),
            "command": list(run.record.values["command"]),
            "sweep": asdict(run.record.parent_of(name)),
            "varied": {},
            "candidate": None,
            "output": str(output),
        }
        run.console.say(f"{name}: begun beside it by another worker, which writes to {output}")
        self._busy.add(name)
        future = self._runner.submit(run_cell, {"cell": self._workers.message(cell)})
        self._sent[name] = future
        future.add_done_callback(lambda _: self._busy.discard(name))


@contextmanager
def branches_of(run: PipelineRun) -> Iterator[Branches | None]:
    """What makes steps beside others, where that is asked for and there is room; whatever ends the run ends it."""
    if not run.config.sections.orchestration.branches or run.record.values["sweep"]:
        yield None
        return
    from flows.workers.runners import workers_of

    with workers_of(run.config) as workers:
        if workers.beside < 1:
            yield None
            return
        with shared_server(), workers.make_runner(workers.beside) as runner:
            branches = Branches(run, workers, runner)
            try:
                yield branches
            finally:
                branches.close()


def as_far_as(config: RunConfig, name: str) -> RunConfig:
    """A configuration with only the steps that one of them takes, and itself.

    Raises:
        UserError: Others cannot be left out.
    """
    kept = {name}
    for other in reversed(list(config.steps)):
        if other in kept:
            kept |= set(config.steps[other].needs())
    values: dict[str, Any] = dump(config.sections)
    steps: Mapping[str, Any] = values["pipeline"]
    values["pipeline"] = {each: step if each in kept else {**step, "skip": True} for each, step in steps.items()}
    return load_run(values)
