"""`ratchet run`: compose, check everything that needs no model, then hand over to the flow."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from conf.loader import dump
from conf.run import RunConfig
from flows.compose import compose_run
from flows.outcome import EXIT_CODES, outcome_text
from flows.workspace import Workspace


def main(arguments: argparse.Namespace) -> int:
    """Run one pipeline, or a sweep with `-m`; returns the exit code."""
    if arguments.multirun:
        from flows.sweep import sweep

        return sweep(arguments.overrides, arguments.config_dir)
    record = run_pipeline(compose_run(arguments.overrides, arguments.config_dir), arguments.overrides)
    print(json.dumps(record) if arguments.json else f"\n{outcome_text(record)}")
    return EXIT_CODES[record["verdict"]]


def run_pipeline(config: RunConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Run the flow, after all that can fail early has been tried; returns the run's record."""
    Workspace(config).check()

    from flows.posttrain import posttrain

    record: dict[str, Any] = posttrain(dump(config.sections), list(overrides), checked=True)
    return record
