"""A sweep from its first cell to the leaderboard: what the flow of a sweep does, without Prefect.

What the cells come to is written to the sweep's folder as they end.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from conf.errors import UserError
from flows.console import Console
from flows.outcome import EXIT_CODES
from flows.stop import Stopped, StopRequest
from flows.sweeps.cells import Cell, chosen_of, gate_cell, open_cell
from flows.sweeps.leaderboard import CellResult, Leaderboard, cell_result, leaderboard, settings_of
from flows.sweeps.leaderboard_files import leaderboard_text, write_leaderboard
from flows.sweeps.mirror import SweepMirror
from flows.sweeps.record import SweepRecord
from flows.sweeps.report import write_report
from flows.workers.dispatch import Dispatch
from flows.workers.runners import Workers
from flows.workspace import Workspace

if TYPE_CHECKING:
    from flows.sweeps.sweeper import Jobs


class SweepRun:
    """A sweep in progress.

    Args:
        cells: Those of the first launch.
        jobs: Where those of later launches come from.
        command: The command line that starts it again.
        config_dir: The user's own configuration.
        workers: Who runs the cells.

    Attributes:
        found: The leaderboard, once all cells are over.
        error: What ended it early.
        shipped: What came of the winner's gate, where one was asked for.
    """

    def __init__(
        self, cells: Sequence[Cell], jobs: "Jobs", command: Sequence[str], config_dir: str | None, workers: Workers
    ) -> None:
        first = cells[0].config
        assert first is not None
        workspace = Workspace(first)
        self.runs_dir = workspace.runs_dir
        self.console = Console()
        self.record = SweepRecord(first.sections, self.runs_dir, command)
        self.stop = StopRequest(self.console.say, self.record.folder)
        self.workers = workers
        self.found: Leaderboard | None = None
        self.error: BaseException | None = None
        self.shipped: dict[str, Any] | None = None
        self._sections, self._config_dir, self._jobs = first.sections, config_dir, jobs
        self._cells = list(cells)
        self._outcomes: dict[int, Mapping[str, Any]] = {}

    def run(self, dispatch: Dispatch) -> None:
        """Run all cells of all launches, and then, if it is asked for, the winner's gate.

        Raises:
            Stopped: It was asked to end.
        """
        mirror = None
        try:
            mirror = SweepMirror(self._sections.tracking, self.runs_dir, self.record, self.console.say)
            with self.stop.signals():
                self._run(dispatch)
        except BaseException as error:
            self.error = error
            with suppress(Exception):  # what cannot be written, on a full disk, must not hide why
                self._close(self.stop.ended(error), mirror)
            raise
        self._close("completed", mirror)

    def _run(self, dispatch: Dispatch) -> None:
        self.console.say(f"{self.record.id}: {len(self._cells)} cells, {self.workers.count} at once")
        batch = list(self._cells)
        while batch:
            self._dispatch(dispatch, batch)
            self._jobs.answer([self._score(cell) for cell in batch])
            batch = self._next()
        self.found = leaderboard(self._results())
        if self._sections.sweep.ship_winner:
            self._ship(dispatch)

    def _close(self, state: str, mirror: SweepMirror | None) -> None:
        """Write and send what is known."""
        files = []
        if self._outcomes:
            found = self.found or leaderboard(self._results())
            files = write_leaderboard(self.record.folder, found, sweep=self.record.id, shipped=self.shipped)
            files.append(write_report(self.record.folder / "report.html", self.record.id, found))
        if mirror is not None:
            mirror.close(state, self.found, files)
        self.record.end(state)

    def _dispatch(self, dispatch: Dispatch, cells: Sequence[Cell]) -> None:
        self.record.update(total=len(self._cells))
        for cell in cells:
            if cell.error:
                self._ended(cell, {"state": "failed", "code": 2, "run": None, "error": cell.error, "scores": {}})
        dispatch.run([cell for cell in cells if not cell.error], self._message, self._begun, self._ended)
        if self.stop.requested():
            raise Stopped(self.stop.reason)

    def _message(self, cell: Cell) -> dict[str, Any]:
        sweep = self.record.parent_of(cell.number)
        return self.workers.message(cell.message(sweep, str(self.record.output(cell.number)), self._config_dir))

    def _next(self) -> list[Cell]:
        """The cells of the next launch; one that cannot run has failed, now that others have run."""
        try:
            batch = self._jobs.next() or []
        except Exception as error:
            self.console.say(f"the sweeper ended: {error.__cause__ or error}")
            batch = []
        cells = []
        for composed, overrides in batch:
            number = len(self._cells) + 1
            try:
                cell = open_cell(number, composed, overrides, self._jobs.fixed)
            except UserError as error:
                chosen = chosen_of(overrides, self._jobs.fixed)
                cell = Cell(number=number, overrides=overrides, chosen=chosen, error=str(error))
            self._cells.append(cell)
            cells.append(cell)
        return cells

    def _begun(self, cell: Cell) -> None:
        self.record.update_cell(cell.number, state="running", overrides=list(cell.overrides))
        self.console.say(f"{cell.label}  begins, and writes to {self.record.output(cell.number)}")
        if cell.unspent:
            self.console.say(f"{cell.label}  sweep.budget leaves {cell.unspent}: too few for another optimiser step")

    def _ended(self, cell: Cell, outcome: Mapping[str, Any]) -> None:
        self._outcomes[cell.number] = outcome
        known = {name: outcome[name] for name in ("state", "run", "error")}
        self.record.update_cell(cell.number, **known, scores={n: s["mean"] for n, s in outcome["scores"].items()})
        scores = "  ".join(f"{name} {score['mean']:.3f}" for name, score in outcome["scores"].items())
        left = sum(other.number not in self._outcomes for other in self._cells)
        self.console.say(f"{cell.label}  {outcome['state']}  {outcome['error'] or scores}  ({left} to go)")

    def _score(self, cell: Cell) -> float | None:
        """The objective of an optimiser: the mean over the rows of all task suites on the `select` split."""
        return cell_result(cell, {}, self._outcomes[cell.number], self.runs_dir).score

    def _results(self) -> list[CellResult]:
        ended = [cell for cell in self._cells if cell.number in self._outcomes]
        return [
            cell_result(cell, settings, self._outcomes[cell.number], self.runs_dir)
            for cell, settings in zip(ended, settings_of(ended), strict=True)
        ]

    def _ship(self, dispatch: Dispatch) -> None:
        """Send the winner to its gate: of its seeds, the one that scored best."""
        assert self.found is not None
        if self.found.winner is None:
            self.console.say(f"{self.found.why}: nothing ships")
            self.shipped = {"state": "no winner", "code": EXIT_CODES["inconclusive"], "run": None}
            return
        best = max(self.found.winner.scored, key=lambda cell: (cell.score or 0.0, -cell.seed))
        gate = gate_cell(len(self._cells) + 1, self._cells[best.number - 1])
        self._dispatch(dispatch, [gate])
        outcome = self._outcomes.pop(gate.number)
        self.shipped = {**{name: outcome[name] for name in ("state", "code", "run", "error")}, "cell": best.number}

    @property
    def code(self) -> int:
        """The exit code (see `exit_code`)."""
        return exit_code(self._outcomes, self.shipped)

    @property
    def text(self) -> str:
        """What a person reads at the end."""
        assert self.found is not None
        lines = [leaderboard_text(self.found)]
        if self.shipped and self.shipped["run"]:
            lines.append(
                f"the gate of {self.shipped['run']}: {self.shipped['state']} (exit code {self.shipped['code']})"
            )
        return "\n\n".join(
            [*lines, f"{self.record.folder / 'report.html'} shows it, {self.record.folder} has the rest"]
        )


def exit_code(outcomes: Mapping[int, Mapping[str, Any]], shipped: Mapping[str, Any] | None) -> int:
    """That of the winner's gate where one was asked for, else that of the first cell by number that was not well."""
    if shipped:
        return int(shipped["code"])
    return next((int(outcomes[number]["code"]) for number in sorted(outcomes) if outcomes[number]["code"]), 0)
