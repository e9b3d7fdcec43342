"""Runs that ended before they were done, and the commands that continue them."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def interrupted(records: Sequence[Mapping[str, Any]], same: str = "config") -> list[Mapping[str, Any]]:
    """The interrupted runs of this machine that no later one of the same configuration has taken up, in their order.

    Args:
        records: Of pipeline runs; or of sweeps, which are the same with the same `command`.
        same: What tells that a later one takes an earlier one up.
    """
    return [
        record
        for number, record in enumerate(records)
        if record["state"] == "interrupted"
        and not record.get("imported")
        and not any(later.get(same) == record.get(same) for later in records[number + 1 :])
    ]


def resume_command(record: Mapping[str, Any]) -> str:
    """A shell command that does what the run did not come to; it works from the present directory."""
    command = list(record.get("command") or ["ratchet", "run", *record.get("overrides", [])])
    runs_dir = record.get("config", {}).get("runs_dir", "runs")
    if runs_dir != "runs" and not any(item.startswith("runs_dir=") for item in command):  # RATCHET_RUNS_DIR was set
        from flows.compose import quoted  # loads Hydra

        command.insert(2, quoted("runs_dir", runs_dir))
    directory = record.get("directory", str(Path.cwd()))
    there = "" if directory == str(Path.cwd()) else f"cd {shlex.quote(directory)} && "
    return there + shlex.join(command)
