"""`ratchet promote RUN --reason TEXT`: a person makes the model of a run the champion, and answers for it."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.errors import UserError
from conf.hardware import HardwareConfig
from conf.loader import load
from conf.registry import RegistryConfig
from conf.schema import TrackingConfig
from flows.references import FoundRun, find_run, latest_with
from stages.hardware import resolve_hardware


def main(arguments: argparse.Namespace) -> int:
    """Promote; returns the exit code.

    Raises:
        UserError: There is no such run, no reason is given, or MLflow cannot be used.
    """
    if not arguments.reason.strip():
        raise UserError("--reason: is empty; say why, for whoever asks later")
    runs_dir = Path(arguments.runs_dir).resolve()
    found = find_run(runs_dir, arguments.run)
    if found.record is None:  # a store id: the run that made it, or used it last, says where it would have shipped
        found = replace(found, record=latest_with(runs_dir, found.entry))
    found.model()  # is it finished, and whole?
    tracking, registry = _sections(found, arguments)

    from flows.registry.promotion import promote

    promoted = promote(
        found,
        runs_dir,
        tracking,
        registry.name,
        hardware=resolve_hardware(HardwareConfig()),
        reason=arguments.reason.strip(),
        anchor=arguments.anchor,
    )
    print(json.dumps(promoted) if arguments.json else promoted["text"])
    return 0


def _sections(found: FoundRun, arguments: argparse.Namespace) -> tuple[TrackingConfig, RegistryConfig]:
    """Where the run itself was tracked and would have been registered, unless it is said otherwise."""
    config: dict[str, Any] = dict((found.record or {}).get("config", {}))
    tracking = {**config.get("tracking", {}), "required": True}
    if arguments.tracking_uri:
        tracking["uri"] = arguments.tracking_uri
    registry = {**config.get("registry", {}), **({"name": arguments.name} if arguments.name else {})}
    return load(TrackingConfig, tracking, "tracking"), load(RegistryConfig, registry, "registry")
