"""`ratchet run`: compose, check everything that needs no model, then hand over to the flow."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from conf.errors import UserError
from conf.loader import dump
from conf.run import RunConfig
from flows.compose import compose_run
from flows.outcome import EXIT_CODES, outcome_text
from flows.workspace import Workspace


def main(arguments: argparse.Namespace) -> int:
    """Run one pipeline, or a sweep with `-m`; returns the exit code.

    Raises:
        UserError: The configuration is wrong, or a sweep is to be detached.
        Stopped: The run was asked to end early.
    """
    if arguments.multirun:
        if arguments.detach:
            raise UserError(
                "--detach starts one run; leave out -m, or start the sweep with `nohup ratchet run -m ... &`"
            )
        from flows.sweep import sweep

        return sweep(arguments.overrides, arguments.config_dir)
    config = compose_run(arguments.overrides, arguments.config_dir)
    command = command_line("run", arguments.overrides, arguments.config_dir)
    if arguments.detach:
        from flows.detach import detach

        return detach(config, arguments.overrides, command, arguments.json)
    record = run_pipeline(config, arguments.overrides, command, arguments.run_id)
    print(json.dumps(record) if arguments.json else f"\n{outcome_text(record)}")
    return EXIT_CODES[record["verdict"]]


def command_line(name: str, overrides: Sequence[str], config_dir: str | None, *options: str) -> list[str]:
    """The command line that starts the same run again."""
    return ["ratchet", name, *overrides, *(["--config-dir", config_dir] if config_dir else []), *options]


def run_pipeline(
    config: RunConfig, overrides: Sequence[str], command: Sequence[str] = (), run_id: str | None = None
) -> dict[str, Any]:
    """Run the flow, after all that can fail early has been tried; returns the run's record.

    Raises:
        Stopped: The run was asked to end early.
    """
    workspace = Workspace(config)
    workspace.check()

    from flows.flow_report import catch_up, run_flow
    from flows.posttrain import posttrain
    from flows.prefect_server import start_server

    start_server()
    catch_up(workspace.runs_dir)
    return run_flow(posttrain, dump(config.sections), list(overrides), list(command), run_id)
