"""`ratchet deploy`: run a pipeline on a schedule; list what is deployed, and remove it."""

import argparse
import json
import os
import re
import shlex
import zoneinfo
from pathlib import Path
from typing import Any

from conf.errors import UserError
from conf.loader import suggestion
from flows.commands.run import checked
from flows.compose import compose_run, overridden, quoted
from stages.table import table


def main(arguments: argparse.Namespace) -> int:
    """Deploy, list or remove; returns the exit code.

    Raises:
        UserError: The configuration, the schedule, the pool or the options are wrong, or there is no server.
    """
    _check_options(arguments)
    if arguments.cron is None:
        _require_server()
        return _list(arguments.json) if arguments.list else _remove(arguments.remove, arguments.json)
    overrides = _overrides(arguments.overrides)
    config_dir = str(Path(arguments.config_dir).resolve()) if arguments.config_dir else None
    config = compose_run(overrides, arguments.config_dir)
    if not arguments.serve:
        _require_server()

    from flows.schedules.deployments import Request, deploy, job_variables

    request = Request(
        name=arguments.name or config.sections.name,
        overrides=overrides,
        config_dir=config_dir,
        cron=arguments.cron,
        timezone=arguments.timezone,
        on_overlap=arguments.on_overlap,
        retries=arguments.retries,
    )
    variables = job_variables(arguments.job_variable)
    _ = request.schedule
    checked(config)
    if arguments.serve:
        return _serve(request, arguments.json)
    made = deploy(request, arguments.pool, variables)
    print(json.dumps(made) if arguments.json else _how_to_go_on(made))
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together, and what cannot be a name, a time zone or a number of retries."""
    given = {"--serve": arguments.serve, "--pool": arguments.pool, "--job-variable": arguments.job_variable}
    given |= {"--name": arguments.name, "overrides": arguments.overrides}
    if arguments.cron is None:
        extra = next((option for option, value in given.items() if value), None)
        if extra:
            raise UserError(f'{extra}: goes with --cron, e.g. ratchet deploy experiment=nightly --cron "0 2 * * *"')
    if arguments.serve and (arguments.pool or arguments.job_variable):
        raise UserError("--serve: runs here, without a work pool; leave out --pool and --job-variable")
    if arguments.retries < 0:
        raise UserError(f"--retries: must be at least 0, got {arguments.retries}")
    for name in (arguments.name, arguments.remove):
        # Prefect's client puts names into addresses as they are, where `#` and `?` would cut them short.
        if name is not None and not re.fullmatch(r"\w[\w .-]*", name):
            raise UserError(f"{name!r} cannot name a deployment; use letters, digits, spaces, _ . and -")
    try:
        zoneinfo.ZoneInfo(arguments.timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        near = suggestion(arguments.timezone, zoneinfo.available_timezones())
        text = f"--timezone: there is no {arguments.timezone!r}; {near}give e.g. Europe/Berlin, or UTC"
        raise UserError(text) from error


def _overrides(asked: list[str]) -> list[str]:
    """What was asked for, and the runs directory of this shell: a worker's may have none, or another one."""
    runs_dir = os.environ.get("RATCHET_RUNS_DIR")
    if runs_dir and "runs_dir" not in overridden(asked):
        return [*asked, quoted("runs_dir", str(Path(runs_dir).resolve()))]
    return list(asked)


def _require_server() -> None:
    """See that there is a server that stays.

    Raises:
        UserError: There is none, or it does not answer.
    """
    from prefect.settings import PREFECT_API_URL

    from flows.prefect_server import start_server

    if not PREFECT_API_URL.value():
        raise UserError(
            "PREFECT_API_URL: a schedule needs a Prefect server that stays: start one with `prefect server start`, "
            "then `export PREFECT_API_URL=http://127.0.0.1:4200/api`; or let `ratchet deploy ... --serve` do both"
        )
    start_server()  # only asks whether it answers


def _list(as_json: bool) -> int:
    from flows.schedules.deployments import deployments

    found = deployments()
    if as_json:
        print(json.dumps(found))
    elif found:
        print(table([_row(each) for each in found]))
    else:
        print("nothing is deployed")
    return 0


def _remove(name: str, as_json: bool) -> int:
    from flows.schedules.deployments import remove

    removed = remove(name)
    if as_json:
        print(json.dumps({"name": name, "removed": removed}))
    else:
        print(f"{name}: removed" if removed else f"{name}: is not deployed, so there is nothing to remove")
    return 0


def _serve(request: Any, as_json: bool) -> int:
    from prefect.settings import PREFECT_API_URL

    from flows.prefect_server import whole_server

    with whole_server():
        from flows.schedules.serve import serve

        url = PREFECT_API_URL.value()
        told = {"name": request.name, "cron": request.cron, "timezone": request.timezone, "prefect": url}
        text = f"{request.name}: {request.cron} ({request.timezone}), kept by this process; Prefect's pages: {url[:-4]}"
        print(json.dumps(told) if as_json else f"{text}\nCtrl-C ends it; a run under way goes on next time", flush=True)
        serve(request)
    return 0


def _row(deployment: dict[str, Any]) -> dict[str, str]:
    return {
        "name": deployment["name"],
        "schedule": f"{deployment['cron']} ({deployment['timezone'] or 'UTC'})",
        "pool": deployment["pool"] or "served",
        "overlap": deployment["on_overlap"],
        "state": "paused" if deployment["paused"] else "active",
        "overrides": " ".join(deployment["overrides"]),
    }


def _how_to_go_on(deployment: dict[str, Any]) -> str:
    name, pool = deployment["name"], deployment["pool"]
    lines = {
        f"prefect worker start --pool {shlex.quote(pool)}": "runs it; keep it going, here",
        f"prefect deployment run {shlex.quote(f'posttrain/{name}')}": "runs it now",
        "ratchet deploy --list": "what is deployed",
        f"ratchet deploy --remove {shlex.quote(name)}": "ends the schedule",
    }
    width = max(map(len, lines))
    told = [f"  {command:{width}}  {meaning}" for command, meaning in lines.items()]
    return "\n".join([f"{name}: {deployment['cron']} ({deployment['timezone']}), work pool {pool}", *told])
