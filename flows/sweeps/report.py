"""`report.html` of a sweep: one page that needs nothing else, with a heat map of two settings and all cells' curves.

Plain HTML with inline SVG; what the mouse rests on says which cell it is.
"""

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from flows.sweeps.leaderboard import Group, Leaderboard
from flows.sweeps.leaderboard_files import leaderboard_text

_COLOURS = (
    "#2563eb",
    "#dc2626",
    "#059669",
    "#d97706",
    "#7c3aed",
    "#0891b2",
    "#db2777",
    "#65a30d",
    "#475569",
    "#92400e",
)
_FIRST = ("reinforce.beta", "reinforce.group_size")
"""The settings that the heat map shows where they are varied; otherwise the first two that are."""
_WIDTH, _HEIGHT, _MARGIN = 640, 240, 48
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1e293b }
pre { background: #f1f5f9; padding: 1rem; overflow-x: auto; font-size: 13px }
td, th { padding: .4rem .9rem; text-align: center } th { font-weight: 600 } table { border-collapse: collapse }
svg { max-width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: #475569 }
.key { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem }
.keys span { margin-right: 1.2rem; white-space: nowrap }
"""


def write_report(path: Path, title: str, found: Leaderboard) -> Path:
    """Write the page; returns its path."""
    colours = {id(group): _COLOURS[number % len(_COLOURS)] for number, group in enumerate(found.groups)}
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"/><title>{escape(title)}</title>',
        f"<style>{_STYLE}</style>",
        f"<h1>{escape(title)}</h1><pre>{escape(leaderboard_text(found))}</pre>",
        _heat_map(found.groups),
        _keys(found.groups, colours),
        *(_curves(column, found.groups, colours) for column in ("reward", "kl")),
        "</html>",
    ]
    path.write_text("\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    return path


def _heat_map(groups: Sequence[Group]) -> str:
    """The mean score by two settings; over several groups with the same two, their mean."""
    keys = sorted(groups[0].settings, key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST))[:2]
    if not keys:
        return ""
    rows, columns = keys[0], keys[-1]
    cells: dict[tuple[str, str], list[float]] = {}
    for group in groups:
        if group.mean is not None:
            cells.setdefault((group.settings[rows], group.settings[columns]), []).append(group.mean)
    if not cells:
        return ""
    means = {place: statistics.fmean(values) for place, values in cells.items()}
    across = _ordered(group.settings[columns] for group in groups) if len(keys) > 1 else [""]
    down = _ordered(group.settings[rows] for group in groups)
    head = "".join(f"<th>{escape(value)}</th>" for value in across)
    body = "".join(
        f"<tr><th>{escape(value)}</th>"
        + "".join(_heat(means.get((value, other if len(keys) > 1 else value)), means.values()) for other in across)
        + "</tr>"
        for value in down
    )
    rest = [key for key in groups[0].settings if key not in keys]
    note = f", averaged over {', '.join(rest)}" if rest else ""
    by = f"{escape(rows)} (down) by {escape(columns)} (across)" if len(keys) > 1 else escape(rows)
    return f"<h2>Score by setting</h2><p>{by}{escape(note)}</p><table><tr><th></th>{head}</tr>{body}</table>"


def _heat(mean: float | None, means: Collection[float]) -> str:
    if mean is None:
        return "<td>-</td>"
    low, high = min(means), max(means)
    share = (mean - low) / (high - low) if high > low else 0.5
    colour = f"hsl(217 80% {92 - 50 * share:.0f}%)"
    return f'<td style="background:{colour};color:{"#fff" if share > 0.6 else "#1e293b"}">{mean:.3f}</td>'


def _ordered(values: Iterable[str]) -> list[str]:
    """Distinct values, numbers by size."""
    distinct = list(dict.fromkeys(values))
    try:
        return sorted(distinct, key=float)
    except ValueError:
        return distinct


def _keys(groups: Sequence[Group], colours: Mapping[int, str]) -> str:
    keys = "".join(
        f'<span><i class="key" style="background:{colours[id(group)]}"></i>{escape(group.name)}</span> '
        for group in groups
    )
    return f'<h2>Curves</h2><p class="keys">{keys}</p>'


def _curves(column: str, groups: Sequence[Group], colours: Mapping[int, str]) -> str:
    """One line per cell: a column of the progress of reinforcement over its optimiser steps."""
    lines = [(group, cell, cell.curves.get(column, ())) for group in groups for cell in group.cells]
    values = [value for _, _, line in lines for value in line]
    if not values:
        return ""
    low, high = min(values), max(values)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    longest = max(len(line) for _, _, line in lines)

    def point(step: int, value: float) -> str:
        across = _MARGIN + (_WIDTH - 2 * _MARGIN) * (step / max(1, longest - 1))
        down = _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * (value - low) / (high - low)
        return f"{across:.1f},{down:.1f}"

    drawn = "".join(
        f'<polyline fill="none" stroke="{colours[id(group)]}" stroke-width="1.6" stroke-opacity=".8" '
        f'points="{" ".join(point(step, value) for step, value in enumerate(line))}">'
        f"<title>cell {cell.number}: {escape(group.name)}, seed {cell.seed}</title></polyline>"
        for group, cell, line in lines
        if line
    )
    bottom, right = _HEIGHT - _MARGIN, _WIDTH - _MARGIN
    axes = (
        f'<path d="M{_MARGIN},{_MARGIN}V{bottom}H{right}" fill="none" stroke="#94a3b8"/>'
        f'<text x="{_MARGIN - 6}" y="{_MARGIN + 4}" text-anchor="end">{high:.3g}</text>'
        f'<text x="{_MARGIN - 6}" y="{bottom}" text-anchor="end">{low:.3g}</text>'
        f'<text x="{_MARGIN}" y="{bottom + 18}">1</text>'
        f'<text x="{right}" y="{bottom + 18}" text-anchor="end">{longest} steps</text>'
        f'<text x="{_MARGIN}" y="{_MARGIN - 14}">{escape(column)}</text>'
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img">{axes}{drawn}</svg>'
