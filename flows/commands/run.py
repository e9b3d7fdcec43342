"""`ratchet run`: compose, check everything that needs no model, then hand over to the flow."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from conf.errors import DiskError, UserError
from conf.loader import dump
from conf.run import RunConfig
from conf.sweep import Runner
from flows.commands.plan import plan_rows
from flows.compose import compose_run
from flows.outcome import EXIT_CODES, outcome_text
from flows.room import check_room, estimate
from flows.workers.ray_cluster import check_ray
from flows.workspace import Workspace
from stages.disk import GIVE_ROOM, clear_disk_errors


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
        from flows.sweeps.sweeper import sweep

        return sweep(arguments.overrides, arguments.config_dir, arguments.json)
    config = compose_run(arguments.overrides, arguments.config_dir)
    command = command_line("run", arguments.overrides, arguments.config_dir)
    if arguments.detach:
        from flows.detach import detach

        return detach(checked(config), arguments.overrides, command, arguments.json)
    record = run_pipeline(config, arguments.overrides, command, arguments.run_id)
    print(json.dumps(record) if arguments.json else f"\n{outcome_text(record)}")
    return EXIT_CODES[record["verdict"]]


def command_line(name: str, overrides: Sequence[str], config_dir: str | None, *options: str) -> list[str]:
    """The command line that starts the same run again."""
    return ["ratchet", name, *overrides, *(["--config-dir", config_dir] if config_dir else []), *options]


def run_pipeline(
    config: RunConfig,
    overrides: Sequence[str],
    command: Sequence[str] = (),
    run_id: str | None = None,
    sweep: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run the flow, after all that can fail early has been tried; returns the run's record.

    Args:
        config: What to run.
        overrides: What was asked for.
        command: The command line that starts the same run again.
        run_id: Of a run that another process has begun and recorded for this one.
        sweep: Of which sweep it is a cell (see `flows.posttrain`).

    Raises:
        DiskError: A disk is full, or may not be written; says what is kept and how to go on.
        Stopped: The run was asked to end early.
    """
    workspace = checked(config)
    orchestration = config.sections.orchestration
    if orchestration.branches and orchestration.runner is Runner.ray:
        check_ray(config)

    from flows.flow_report import catch_up, run_flow
    from flows.posttrain import posttrain
    from flows.prefect_server import start_server

    start_server()
    catch_up(workspace.runs_dir)
    with _found_late(workspace):
        return run_flow(posttrain, dump(config.sections), list(overrides), list(command), run_id, True, sweep=sweep)


def checked(config: RunConfig, elsewhere: bool = False) -> Workspace:
    """Try all that can fail before a run begins.

    Args:
        config: What to run.
        elsewhere: Whether on another machine.

    Raises:
        UserError: What is wrong, with the configuration or with the disk.
    """
    workspace = Workspace(config)
    with _found_early(workspace):
        workspace.check(elsewhere)
    check_room(workspace, _to_run(workspace))
    return workspace


@contextmanager
def _found_early(workspace: Workspace) -> Iterator[None]:
    """Nothing has run yet: an error about a disk is one about `runs_dir`."""
    try:
        with clear_disk_errors(workspace.runs_dir):
            yield
    except DiskError as error:
        raise UserError(f"runs_dir: {error}; {GIVE_ROOM}") from error


@contextmanager
def _found_late(workspace: Workspace) -> Iterator[None]:
    """Steps may have run: an error about a disk says what is kept, and what the rest needs."""
    try:
        with clear_disk_errors(workspace.runs_dir):
            yield
    except DiskError as error:
        room = f"there is room: what is left may need about {estimate(workspace, _to_run(workspace))}"
        when = room if error.full else "it can be written"
        text = f"{error}; finished steps are kept, and the same command continues once {when}"
        raise DiskError(text, full=error.full) from error


def _to_run(workspace: Workspace) -> list[str]:
    """The steps that have no result yet."""
    return [row["step"] for row in plan_rows(workspace) if row["state"].startswith("run")]
