"""Cells go to the workers of Prefect's task runner, as far as there are any, one at a time to each.

A cell whose next step another one is just making is not begun: it would keep a worker waiting. When a process dies, the
pool loses all of them; the cells that ran go on once more, one at a time, so that the one that kills its process is
found, and the others are not lost with it.
"""

import multiprocessing
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import ExitStack
from typing import Any

from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner

from flows.stop import StopRequest
from flows.sweeps.cells import Cell

_POLL_SECONDS = 0.3

Outcome = Mapping[str, Any]
"""What `flows.sweeps.cell_process.do_cell` returns."""


class Dispatch:
    """Runs cells, a number of them at once. As a context it ends its workers.

    Args:
        make_runner: Makes a task runner of so many workers.
        task: The Prefect task that runs a cell.
        workers: How many.
        stop: Once it is requested, no cell is begun.
    """

    def __init__(self, make_runner: Callable[[int], TaskRunner[Any]], task: Any, workers: int, stop: StopRequest):
        self._make_runner, self._task, self._workers, self._stop = make_runner, task, workers, stop
        self._pool: TaskRunner[Any] | None = None
        self._open = ExitStack()

    def __enter__(self) -> "Dispatch":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is not None:  # in a hurry: what the cells have done so far is in their checkpoints
            for process in multiprocessing.active_children():
                process.kill()
        self._close()

    def run(
        self,
        cells: Sequence[Cell],
        message: Callable[[Cell], dict[str, Any]],
        begun: Callable[[Cell], None],
        ended: Callable[[Cell, Outcome], None],
    ) -> None:
        """Run cells to their ends; on request, to where they have kept what they did.

        Args:
            cells: The cells.
            message: What to send of a cell.
            begun: Told of each that is sent.
            ended: Told of each that is over, and how.
        """
        waiting = list(cells)
        while waiting and not self._stop.requested():
            for suspect in self._drain(waiting, self._workers, message, begun, ended):
                alone = [suspect]
                while alone and not self._stop.requested():
                    if self._drain(alone, 1, message, begun, ended):
                        ended(suspect, _died("its process died, twice: it was killed, or there was no memory left"))

    def _drain(
        self,
        waiting: list[Cell],
        workers: int,
        message: Callable[[Cell], dict[str, Any]],
        begun: Callable[[Cell], None],
        ended: Callable[[Cell, Outcome], None],
    ) -> list[Cell]:
        """Run cells until none is left; returns those that ran when a process died, and leaves the others waiting."""
        done: queue.Queue[PrefectFuture[Outcome]] = queue.Queue()
        running: dict[PrefectFuture[Outcome], Cell] = {}
        while running or (waiting and not self._stop.requested()):
            while len(running) < workers and (cell := self._pick(waiting, list(running.values()))):
                waiting.remove(cell)
                begun(cell)
                future = self._runner().submit(self._task, {"cell": message(cell)})
                running[future] = cell
                future.add_done_callback(done.put)
            if self._stop.requested():
                self._stop.pass_on()
            try:
                future = done.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            try:
                outcome = future.result()
            except BrokenExecutor:
                self._close()
                return list(running.values())
            except Exception as error:  # of the runner's own: it has tried again already, as often as it does
                outcome = _died(f"its worker was lost ({type(error).__name__})")
            ended(running.pop(future), outcome)
        return []

    def _pick(self, waiting: Sequence[Cell], running: Sequence[Cell]) -> Cell | None:
        """The first cell that has something of its own to do."""
        if self._stop.requested() or not waiting:
            return None
        made = {cell.ahead.next() for cell in running} - {None}
        return next((cell for cell in waiting if cell.ahead.next() not in made), None)

    def _runner(self) -> TaskRunner[Any]:
        if self._pool is None:
            self._pool = self._open.enter_context(self._make_runner(self._workers))
        return self._pool

    def _close(self) -> None:
        self._pool = None
        self._open.close()


def _died(error: str) -> Outcome:
    return {"state": "failed", "code": 1, "run": None, "error": error, "scores": {}}
