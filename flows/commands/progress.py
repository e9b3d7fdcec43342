"""`ratchet progress RUN`: what a step logged, row by row."""

import argparse
import json
from pathlib import Path

from conf.errors import UserError
from flows.references import find_run
from stages.table import table


def main(arguments: argparse.Namespace) -> int:
    """Print the rows; returns the exit code.

    Raises:
        UserError: There is no such run, or it logged nothing.
    """
    found = find_run(Path(arguments.runs_dir), arguments.run)
    rows = found.entry.progress()
    if not rows:
        raise UserError(f"{found.name}: logged no rows (only training steps do); try <pipeline-run>/<step>")
    if arguments.json:
        print(json.dumps(rows))
    else:
        columns = list(dict.fromkeys(name for row in rows for name in row if name != "timestamp"))
        print(table([{name: f"{row[name]:.4g}" if name in row else "" for name in columns} for row in rows]))
    return 0
