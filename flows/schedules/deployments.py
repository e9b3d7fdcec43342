"""Deployments: what `ratchet deploy` makes, finds and removes on Prefect's server.

A deployment is the flow of `scheduled` with overrides as its parameter, a schedule, one run at a time, and the
automations of `recovery`. What must not be changed on the server is remembered here (`deployed`).
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect._vendor.croniter import croniter  # type: ignore[attr-defined]  # what the server computes dates with
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.runner.storage import LocalStorage
from prefect.schedules import Cron, Schedule
from prefect.types.entrypoint import EntrypointType

from conf.errors import UserError
from conf.loader import suggestion
from flows.schedules.deployed import Deployed
from flows.schedules.recovery import automations
from flows.schedules.scheduled import scheduled

POOL = "ratchet"
"""The work pool of deployments that name none."""

OVERLAP = {"wait": ConcurrencyLimitStrategy.ENQUEUE, "skip": ConcurrencyLimitStrategy.CANCEL_NEW}
"""What becomes of a run that is due while the one before it is not done."""

_ENVIRONMENT = {"PYTHONSAFEPATH": "1"}  # a package `rewards` in the project must not be taken for ours
"""Of every run's process."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be deployed.

    Attributes:
        name: Of the deployment.
        overrides: As for `ratchet run`.
        config_dir: The user's own configuration, if it is not `conf` in the current directory.
        cron: When.
        timezone: In which the schedule is meant.
        on_overlap: A key of `OVERLAP`.
        retries: As for `flows.schedules.recovery.automations`.
    """

    name: str
    overrides: Sequence[str]
    config_dir: str | None
    cron: str
    timezone: str
    on_overlap: str
    retries: int

    @property
    def schedule(self) -> Schedule:
        """When, as Prefect has it.

        Raises:
            UserError: It is no cron expression, counts seconds, or never comes.
        """
        try:
            if len(self.cron.split()) != 5 and not self.cron.startswith("@"):
                raise ValueError("it does not have five fields")
            schedule = Cron(self.cron, timezone=self.timezone)
            croniter(self.cron).get_next()  # type: ignore[no-untyped-call]
            return schedule
        except ValueError as error:
            raise UserError(
                f"--cron: {self.cron!r} cannot be read ({' '.join(str(error).split())}); give minute, hour, day of "
                'month, month and day of week, e.g. --cron "0 2 * * *"'
            ) from error

    def settings(self) -> dict[str, Any]:
        """What a deployment is made with, wherever it runs."""
        return {
            "name": self.name,
            "schedule": self.schedule,
            "concurrency_limit": ConcurrencyLimitConfig(limit=1, collision_strategy=OVERLAP[self.on_overlap]),
            "parameters": {"overrides": list(self.overrides)},
            "tags": ["ratchet"],
            "paused": False,
            "entrypoint_type": EntrypointType.MODULE_PATH,
        }

    def remember(self, deployment_id: UUID) -> None:
        """Write down what was deployed, and tell the server what to do when a run dies."""
        before = Deployed.find(str(deployment_id))
        if before and before.directory != str(Path.cwd()):
            print(f"ratchet: {self.name}: replaces what was deployed from {before.directory}", file=sys.stderr)
        Deployed(
            id=str(deployment_id),
            name=self.name,
            directory=str(Path.cwd()),
            config_dir=self.config_dir,
            overrides=list(self.overrides),
            timezone=self.timezone,
        ).write()
        with get_client(sync_client=True) as client:
            for automation in automations(deployment_id, self.name, self.retries):
                client.create_automation(automation)


def deploy(request: Request, pool: str | None, job_variables: Mapping[str, Any]) -> dict[str, Any]:
    """Deploy to a work pool, in place of the deployment that has the name; returns what `deployments` has of it.

    Raises:
        UserError: The pool is not there, or does not know a job variable.
    """
    settings = request.settings()  # before anything is made
    with get_client(sync_client=True) as client:
        template = _pool(client, pool)
    variables = {**job_variables, "env": {**_ENVIRONMENT, **job_variables.get("env", {})}}
    _check_variables(job_variables, template, pool or POOL)
    _check_environment(template, pool or POOL)
    made = RunnerDeployment.from_flow(scheduled, **settings, job_variables=variables, work_pool_name=pool or POOL)
    made.storage = LocalStorage(str(Path.cwd()))
    deployment_id = made.apply(work_pool_name=pool or POOL)
    assert isinstance(deployment_id, UUID)  # and not a coroutine: nothing here is asynchronous
    request.remember(deployment_id)
    return next(each for each in deployments() if each["id"] == str(deployment_id))


def deployments() -> list[dict[str, Any]]:
    """All deployments of the pipeline on the server, by name."""
    with get_client(sync_client=True) as client:
        flows = FlowFilter(name=FlowFilterName(any_=[scheduled.name]))
        found = client.read_deployments(flow_filter=flows)
        return sorted((_described(deployment) for deployment in found), key=lambda each: str(each["name"]))


def remove(name: str) -> bool:
    """Remove a deployment and all that it brought; returns whether it was there."""
    with get_client(sync_client=True) as client:
        try:
            found = client.read_deployment_by_name(f"{scheduled.name}/{name}")
        except ObjectNotFound:
            return False
        client.delete_resource_owned_automations(f"prefect.deployment.{found.id}")
        with suppress(ObjectNotFound):  # somebody else was faster
            client.delete_deployment(found.id)
        known = Deployed.find(str(found.id))
        if known:
            known.forget()
    return True


def job_variables(items: Iterable[str]) -> dict[str, Any]:
    """Job variables from KEY=VALUE; `env.NAME=VALUE` sets a variable of the environment.

    Raises:
        UserError: One of them is not KEY=VALUE.
    """
    found: dict[str, Any] = {}
    for item in items:
        key, mark, value = item.partition("=")
        if not mark or not re.fullmatch(r"env\.\w+|\w+", key, re.ASCII):
            raise UserError(f"--job-variable: expected KEY=VALUE or env.NAME=VALUE, got {item!r}")
        if key == "env":
            raise UserError(f"--job-variable: give env.NAME=VALUE, got {item!r}")
        if key.startswith("env."):
            found.setdefault("env", {})[key.removeprefix("env.")] = value
        else:
            found[key] = _plain(value)
    return found


def _plain(value: str) -> Any:
    """JSON where it is JSON (`true`, `2`, `{"team": "nlp"}`), else the text itself."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def _pool(client: SyncPrefectClient, name: str | None) -> Mapping[str, Any]:
    """The job template of a work pool; ours is made where it is missing."""
    try:
        return client.read_work_pool(name or POOL).base_job_template
    except ObjectNotFound as error:
        if name is not None:
            raise UserError(
                f"--pool: there is no work pool {name!r}; make it with `prefect work-pool create {name} --type "
                f"process`, or leave out --pool, which makes one called {POOL}"
            ) from error
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    client.create_work_pool(WorkPoolCreate(name=POOL, type=ProcessWorker.type, base_job_template=template))
    return template


def _check_variables(variables: Mapping[str, Any], template: Mapping[str, Any], pool: str) -> None:
    """A given variable that the pool's template does not have would be left out without a word."""
    known = template.get("variables", {}).get("properties", {})
    for key in variables:
        if known and key not in known:
            raise UserError(
                f"--job-variable: the work pool {pool!r} has no {key!r}; {suggestion(key, known)}it has: "
                f"{', '.join(sorted(known))}"
            )


def _check_environment(template: Mapping[str, Any], pool: str) -> None:
    """Say so where a pool's runs are not given what stands in the job variable `env`."""
    job = template.get("job_configuration", {})
    if not isinstance(job.get("env"), dict) and not re.search(r"{{\s*env\s*}}", json.dumps(job)):
        print(
            f"ratchet: --pool: the work pool {pool!r} hands no environment to its runs, which need PYTHONSAFEPATH=1, "
            "or a package conf, flows, rewards or stages of the project is taken for Ratchet's; add "
            '"env": "{{ env }}" to its job_configuration and "env": {"type": "object"} to its variables, or set it '
            "where the worker starts",
            file=sys.stderr,
        )


def _described(deployment: DeploymentResponse) -> dict[str, Any]:
    """A deployment in plain values."""
    schedules = [each.schedule for each in deployment.schedules if isinstance(each.schedule, CronSchedule)]
    options, known = deployment.concurrency_options, Deployed.find(str(deployment.id))
    names = {strategy: name for name, strategy in OVERLAP.items()}
    return {
        "name": deployment.name,
        "id": str(deployment.id),
        "cron": schedules[0].cron if schedules else None,
        "timezone": schedules[0].timezone if schedules else None,
        "pool": deployment.work_pool_name,
        "on_overlap": names[options.collision_strategy] if options else "wait",
        "paused": deployment.paused,
        "overrides": deployment.parameters.get("overrides", []),
        "directory": known.directory if known else None,
    }
