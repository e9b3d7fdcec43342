"""The leaderboard of a sweep as text, as plain JSON, and as files."""

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows.console import clock
from flows.store import write_json
from flows.sweeps.leaderboard import CellResult, Group, Leaderboard
from stages.table import table


def leaderboard_text(found: Leaderboard) -> str:
    """The leaderboard as a person reads it."""
    guards = list(dict.fromkeys(name for cell in found.cells for name in cell.guards))
    rows = [_row(rank, group, guards) for rank, group in enumerate(found.groups, 1)]
    used = [name for name in rows[0] if any(row[name] for row in rows)]
    lines = [table([{name: row[name] for name in used} for row in rows])]
    lines += [
        f"cell {cell.number} ({_settings(cell)}): {': '.join(text for text in (cell.state, cell.error) if text)}"
        for cell in found.cells
        if cell.score is None
    ]
    sharing = found.sharing
    if sharing["once"] < sharing["alone"]:
        lines.append(
            f"computing: {clock(sharing['once'])}; without shared steps it would be {clock(sharing['alone'])} "
            f"({sharing['once'] / sharing['alone']:.0%})"
        )
    return "\n\n".join(["\n".join(lines[:1]), *(["\n".join(lines[1:])] if lines[1:] else []), found.why])


def _settings(cell: CellResult) -> str:
    return " ".join([*(f"{key}={value}" for key, value in cell.settings.items()), f"seed={cell.seed}"])


def _row(rank: int, group: Group, guards: Sequence[str]) -> dict[str, str]:
    scored, asked = group.scored, len({cell.seed for cell in group.cells})
    interval = "" if group.low is None else f" ({group.low:.2f} to {group.high:.2f})"
    score = "" if group.mean is None else f"{group.mean:.3f}{interval}"
    kept = {name: [cell.guards[name] for cell in scored if name in cell.guards] for name in guards}
    seconds = group.average("seconds")
    return {
        "rank": str(rank),
        **group.settings,
        "seeds": f"{len(group.seeds)}/{asked}" if len(group.seeds) < asked else str(asked),
        "score": score,
        **{name: f"{statistics.fmean(values):.3f}" if values else "" for name, values in kept.items()},
        "kl": _number(group.average("kl")),
        "tokens": _number(group.average("tokens"), ".0f"),
        "time": "" if seconds is None else clock(seconds),
    }


def _number(value: float | None, form: str = ".4f") -> str:
    return "" if value is None else f"{value:{form}}"


def leaderboard_values(found: Leaderboard) -> dict[str, Any]:
    """The leaderboard as plain JSON."""
    groups = [
        {
            "settings": dict(group.settings),
            "mean": group.mean,
            "low": group.low,
            "high": group.high,
            "seeds": group.seeds,
            "cells": [cell.number for cell in group.cells],
            "kl": group.average("kl"),
            "tokens": group.average("tokens"),
            "seconds": group.average("seconds"),
        }
        for group in found.groups
    ]
    cells = [{key: value for key, value in asdict(cell).items() if key not in _LONG} for cell in found.cells]
    winner = None if found.winner is None else dict(found.winner.settings)
    return {"groups": groups, "cells": cells, "winner": winner, "why": found.why, "sharing": found.sharing}


_LONG = ("rows", "curves")
"""Of a cell, what has a value per row or step."""


def write_leaderboard(folder: Path, found: Leaderboard, **more: Any) -> list[Path]:
    """Write `leaderboard.json`, `leaderboard.csv` (a line per group) and `cells.csv`; returns their paths."""
    values = leaderboard_values(found)
    paths = [folder / name for name in ("leaderboard.json", "leaderboard.csv", "cells.csv")]
    write_json(paths[0], {**values, **more})
    _write_csv(paths[1], values["groups"])
    _write_csv(paths[2], values["cells"])
    return paths


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    flat = [_flat(row) for row in rows]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(flat)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its settings and guards as columns of their own."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if key in ("settings", "guards"):
            flat |= value
        elif isinstance(value, list):
            flat[key] = " ".join(map(str, value))
        elif not isinstance(value, Mapping):
            flat[key] = value
    return flat
