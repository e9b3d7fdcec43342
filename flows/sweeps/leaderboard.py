"""What came of a sweep: its cells grouped over seeds, the best first, and whether one of them is surely the best.

Numbers come from the store and the scores on the `select` split, never from how this attempt went: a sweep that was
killed and started again has the same leaderboard as one that was not.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.references import find_pipeline
from flows.store import Entry
from flows.sweeps.cells import SEED, Cell

_LAST = 10
"""The part of the steps, one in so many, over which the KL at the end is averaged; one step alone is noisy."""


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """A cell and what it came to.

    Attributes:
        number: Of the cell.
        settings: What it varies, without the seed.
        seed: Its seed.
        state: As of its run.
        error: Why it has no score.
        run: Its pipeline run.
        score: Mean over the rows of all task suites.
        guards: Mean score by guard suite.
        kl: At the end of reinforcement, in nats per token, against the model it started from.
        tokens: Generated in reinforcement.
        seconds: What its steps take, those included that it shares.
        steps: By id of the store entry, the seconds of its steps.
        rows: Score by row of the task suites.
        scored_on: What identifies these rows, and how they are scored.
        curves: By column of the progress, the values at the steps of reinforcement.
    """

    number: int
    settings: Mapping[str, str]
    seed: int
    state: str
    error: str = ""
    run: str | None = None
    score: float | None = None
    guards: Mapping[str, float] = field(default_factory=dict)
    kl: float | None = None
    tokens: int | None = None
    seconds: float = 0.0
    steps: Mapping[str, float] = field(default_factory=dict)
    rows: Sequence[float] = ()
    scored_on: str = ""
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Cells that differ in the seed alone."""

    settings: Mapping[str, str]
    cells: Sequence[CellResult]
    mean: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def scored(self) -> list[CellResult]:
        """Its cells with a score."""
        return [cell for cell in self.cells if cell.score is not None]

    @property
    def seeds(self) -> list[int]:
        """Those of its cells with a score, each once: a cell that a sweeper repeats says nothing new."""
        return list(_by_seed(self.cells))

    @property
    def name(self) -> str:
        """Its settings in words."""
        return " ".join(f"{key}={value}" for key, value in self.settings.items()) or "the only setting"

    def average(self, number: str) -> float | None:
        """A number of its cells with a score on average; None when none has it."""
        values = [value for cell in self.scored if (value := getattr(cell, number)) is not None]
        return statistics.fmean(values) if values else None


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """The groups, best first; the winner if there is one; and in words why it is, or why there is none."""

    groups: Sequence[Group]
    winner: Group | None
    why: str

    @property
    def cells(self) -> list[CellResult]:
        """All cells by number."""
        return sorted((cell for group in self.groups for cell in group.cells), key=lambda cell: cell.number)

    @property
    def sharing(self) -> dict[str, float]:
        """Seconds of computing: `once` for every step as it was, `alone` if no cell shared any with another."""
        once = {store: seconds for cell in self.cells for store, seconds in cell.steps.items()}
        alone = [seconds for cell in self.cells for seconds in cell.steps.values()]
        return {"once": round(sum(once.values()), 3), "alone": round(sum(alone), 3)}


def settings_of(cells: Sequence[Cell]) -> list[dict[str, str]]:
    """Of every cell, what it does not have in common with all others, by key and without the seed."""
    chosen = [cell.settings for cell in cells]
    keys = list(dict.fromkeys(key for each in chosen for key in each if key != SEED))
    varied = [key for key in keys if len({each.get(key) for each in chosen}) > 1]
    return [{key: each.get(key, "") for key in varied} for each in chosen]


def cell_result(cell: Cell, settings: Mapping[str, str], outcome: Mapping[str, Any], runs_dir: Path) -> CellResult:
    """A cell with the numbers of its store entries."""
    scores: Mapping[str, Mapping[str, Any]] = outcome["scores"]
    tasks = [suite for suite in scores.values() if suite["role"] == "task"]
    rows = [score for suite in tasks for score in suite["by_row"]]
    record = find_pipeline(runs_dir, outcome["run"]) if outcome["run"] else None
    steps = record["steps"] if record else {}
    entries = {name: Entry(runs_dir / "store" / step["store"]) for name, step in steps.items() if step["store"]}
    saved = {entry.id: found["seconds"] for entry in entries.values() if (found := entry.saved("result.json"))}
    trained = [entry for name, entry in entries.items() if steps[name]["stage"] == "reinforce" and entry.id in saved]
    progress = [row for entry in trained for row in entry.progress()]
    last = [row["kl"] for row in progress[-max(1, len(progress) // _LAST) :] if "kl" in row]
    return CellResult(
        number=cell.number,
        settings=settings,
        seed=cell.config.sections.seed if cell.config else 0,
        state=outcome["state"],
        error=outcome["error"],
        run=outcome["run"],
        score=statistics.fmean(rows) if rows else None,
        guards={name: suite["mean"] for name, suite in scores.items() if suite["role"] != "task"},
        kl=statistics.fmean(last) if last else None,
        tokens=round(sum(row.get("generated_tokens", 0) for row in progress)) if progress else None,
        seconds=round(sum(saved.values()), 3),
        steps=saved,
        rows=rows,
        scored_on=" ".join(suite["id"] for suite in tasks),
        curves={column: [row[column] for row in progress if column in row] for column in ("reward", "kl")},
    )


def leaderboard(cells: Sequence[CellResult]) -> Leaderboard:
    """Group cells over their seeds, and see whether the best is surely better than every other."""
    by_settings: dict[tuple[tuple[str, str], ...], list[CellResult]] = {}
    for cell in cells:
        by_settings.setdefault(tuple(cell.settings.items()), []).append(cell)
    groups = [_group(dict(settings), members) for settings, members in by_settings.items()]
    groups.sort(key=lambda group: -math.inf if group.mean is None else group.mean, reverse=True)
    winner, why = _winner([group for group in groups if group.mean is not None])
    return Leaderboard(groups=groups, winner=winner, why=why)


def _group(settings: Mapping[str, str], cells: Sequence[CellResult]) -> Group:
    from stages.seeds import mean_over_seeds

    group = Group(settings=settings, cells=cells)
    if not group.scored:
        return group
    if not _same_rows([group]):  # there is no interval over rows that are not the same
        return replace(group, mean=statistics.fmean(statistics.fmean(cell.rows) for cell in group.scored))
    return replace(group, **vars(mean_over_seeds(_by_seed(cells))))


def _same_rows(groups: Sequence[Group]) -> bool:
    return len({cell.scored_on for group in groups for cell in group.scored}) == 1


def _by_seed(cells: Sequence[CellResult]) -> dict[int, Sequence[float]]:
    return {cell.seed: cell.rows for cell in cells if cell.score is not None}


def _winner(ranked: Sequence[Group]) -> tuple[Group | None, str]:
    """The first, if it leads every other by more than chance; named in the words is the one that comes closest."""
    from stages.seeds import NotComparable, lead

    if len(ranked) < 2:
        return None, "no winner: nothing to compare" if ranked else "no winner: no cell has a score"
    best, *others = ranked
    if failed := len(best.cells) - len(best.scored):
        return None, f"no winner: {best.name} leads, but {failed} of its {len(best.cells)} cells have no score"
    if not _same_rows(ranked):
        return None, "no winner: cells were scored on different rows, or in different ways"
    leads = []
    for each in others:
        try:
            leads.append((each, lead(_by_seed(best.cells), _by_seed(each.cells))))
        except NotComparable as error:
            return None, f"no winner: {best.name} and {each.name} have {error}"
    other, found = min(leads, key=lambda each: each[1].low)
    interval = f"{found.mean:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
    seeds = len(set(best.seeds) & set(other.seeds))
    of = f"rows and {seeds} seeds" if seeds > 1 else "rows; one seed says nothing of others"
    if found.low <= 0:
        of += "; a third would make the interval far narrower" if seeds == 2 else ""
        return None, f"no winner: {best.name} leads {other.name} by {interval}, which may be chance ({of})"
    return best, f"winner: {best.name}, {interval} before {other.name} (95% over {of})"
