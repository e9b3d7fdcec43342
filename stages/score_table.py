"""Per-row scores as files: a table for programs (parquet), and replies side by side for people."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.contract import Suite
from stages.rows import Row, read_rows
from stages.samples import expected, write_json_lines
from stages.suite_scores import RowScore

_NESTED = {"values": "reward", "information": "information", "errors": "error"}
"""Fields that have one column for every reward, and what these columns begin with."""


def write_table(path: Path, rows: Sequence[RowScore], suites: Mapping[str, Suite]) -> Path:
    """Write one line per reply, with the row's prompt and reference; returns the path.

    Columns are the fields of `RowScore`; of the nested ones `reward.<name>`, `information.<name>` and `error.<name>`,
    empty where another suite has such a reward.
    """
    import pyarrow
    from pyarrow import parquet

    asked = {name: read_rows(suite.rows) for name, suite in suites.items()}
    records = [_record(row, asked[row.suite][row.row]) for row in rows]
    columns = list(dict.fromkeys(name for record in records for name in record))
    table = pyarrow.table({name: [record.get(name) for record in records] for name in columns})
    parquet.write_table(table, path)
    return path


def _record(row: RowScore, asked: Row) -> dict[str, Any]:
    plain = {name: value for name, value in vars(row).items() if name not in _NESTED}
    nested = {
        f"{prefix}.{name}": value for field, prefix in _NESTED.items() for name, value in vars(row)[field].items()
    }
    reference = expected(asked)
    text = reference if isinstance(reference, str) else json.dumps(reference, ensure_ascii=False)
    return {**plain, **nested, "prompt": asked.prompt_text, "reference": text}


def write_side_by_side(path: Path, rows: Sequence[RowScore], suites: Mapping[str, Suite], count: int) -> Path:
    """Write the first rows of every suite, each with the first reply of every model; returns the path."""
    lines: dict[tuple[str, int], dict[str, Any]] = {}
    for name, suite in suites.items():
        for number, row in enumerate(read_rows(suite.rows, suite.max_rows)[:count]):
            line = {"suite": name, "prompt": row.prompt_text, "reference": expected(row), "replies": {}}
            lines[name, number] = line
    for reply in rows:
        if reply.sample == 0 and (reply.suite, reply.row) in lines:
            lines[reply.suite, reply.row]["replies"][reply.model] = reply.completion
    return write_json_lines(path, lines.values())
