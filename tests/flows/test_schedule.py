"""Schedules with a real Prefect server and real workers: overlaps, crashes of all kinds, what is not tried again."""

import json
import os
import re
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from flows.cli import main
from flows.liveness import is_alive
from flows.references import pipeline_records
from tests.flows.scheduling import STEPS, Process, Run, Scheduler, make_bare_pool, wait_until

pytestmark = pytest.mark.slow
CRON = ("--cron", "0 2 * * *")


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    scheduler = Scheduler(tmp_path_factory.mktemp("scheduler"))
    scheduler.start()
    with scheduler.settings():
        yield scheduler
    scheduler.server.stop()


@pytest.fixture
def project(small_project: Path) -> Iterator[Path]:
    """The project, as the current directory; what still runs in it afterwards is killed."""
    yield small_project
    for record in pipeline_records(small_project / "runs"):
        if is_alive(small_project / "runs" / "pipelines" / record["id"]):
            os.kill(record["pid"], signal.SIGKILL)


@pytest.fixture
def deploy(scheduler: Scheduler, project: Path, capsys: Any) -> Iterator[Any]:
    """Deploys; returns what `--json` says."""
    names: list[str] = []

    def go(*arguments: str) -> Any:
        capsys.readouterr()
        assert main(["deploy", *arguments, *CRON, "--json", "--debug"]) == 0
        deployment = json.loads(capsys.readouterr().out)
        names.append(deployment["name"])
        return deployment

    yield go
    for name in names:
        assert main(["deploy", "--remove", name]) == 0


def trained_once(project: Path) -> None:
    """There is one training, whole, with every row once, on disk and in MLflow."""
    (entry,) = (project / "runs" / "store").glob("sft-*")
    rows = [json.loads(line) for line in (entry / "progress.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert (entry / "result.json").exists()
    run = json.loads((entry / "tracking.json").read_text())["run"]
    client = MlflowClient(f"sqlite:///{project / 'runs' / 'mlflow.db'}")
    logged = [metric.step for metric in client.get_metric_history(run, "loss") if metric.step]
    assert sorted(logged) == [row["step"] for row in rows]


def slots(deployment: dict[str, Any]) -> int:
    """How many runs hold the deployment's place."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return client.read_deployment(deployment["id"]).global_concurrency_limit.active_slots


def test_a_night_that_dies_with_its_worker_gives_its_place_back_and_goes_on(scheduler, project, deploy):
    make_bare_pool("bare")  # signs of life come without an environment, too
    deployment = deploy("experiment=small", "--pool", "bare")
    night = Run.of(deployment)
    with scheduler.worker("bare") as worker:
        pid = night.freeze(project, rows=20)
        other = Run.of(deployment)
        other.wait_for("AwaitingConcurrencySlot")  # it waits, and does not run beside the first
        worker.kill()
        os.kill(pid, signal.SIGKILL)
    assert night.now.state.is_running() and slots(deployment) == 1  # nobody is left to say so
    with scheduler.worker("bare") as worker:
        for run in (night, other):
            run.wait_for("Completed")
        said = worker.text()
    night.show("killed with its worker")
    other.show("waited")
    assert [state for state in night.states() if state in ("Crashed", "Resuming")] == ["Crashed", "Resuming"]
    assert "goes on after step" in said
    trained_once(project)
    first, second = night.records(project)
    assert (first["state"], second["state"]) == ("interrupted", "completed")
    assert slots(deployment) == 0


def test_a_due_run_is_skipped_and_a_process_that_is_killed_or_ended_goes_on(scheduler, project, deploy):
    deployment = deploy("experiment=small", "--on-overlap", "skip", "--name", "hasty")
    night = Run.of(deployment)
    with scheduler.worker() as worker:
        pid = night.freeze(project, rows=20)
        other = Run.of(deployment)
        other.wait_for("Cancelled")
        os.kill(pid, signal.SIGKILL)
        night.wait_for("Resuming")
        pid = night.freeze(project, rows=100)
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
        night.wait_for("AwaitingRetry")
        night.wait_for("Completed")
        said = worker.text()
    night.show("killed, then ended by a signal")
    other.show("skipped")
    assert said.count("goes on after step") == 2
    assert night.states().count("Crashed") == night.states().count("Resuming") == 1
    assert [record["state"] for record in night.records(project)] == ["interrupted", "interrupted", "completed"]
    assert other.records(project) == []
    trained_once(project)


def test_what_is_held_refused_or_cancelled_is_not_tried_again(scheduler, project, deploy):
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelling

    deployment = deploy("experiment=held")
    assert deployment["overrides"] == ["experiment=held"]
    with scheduler.worker():
        held = Run.of(deployment)
        held.wait_for("Held")
        (record,) = held.records(project)
        assert (record["verdict"], record["overrides"]) == ("hold", ["experiment=held"])
        changed = Run.of(deployment, overrides=["experiment=held", "sft.max_steps=20"])
        changed.wait_for("Held")
        (record,) = changed.records(project)
        assert record["config"]["sft"]["max_steps"] == 20
        refused = Run.of(deployment, overrides=["experiment=held", "runs_dir=/elsewhere"])
        refused.wait_for("Failed")
        cancelled = Run.of(deploy("experiment=small", "seed=1"))
        pid = cancelled.freeze(project, rows=20)
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(cancelled.id, Cancelling())
        os.kill(pid, signal.SIGCONT)
        cancelled.wait_for("Cancelled")
    for run in (held, changed, refused, cancelled):
        run.show("not tried again")
    (record,) = cancelled.records(project)
    assert record["state"] == "interrupted"
    assert "Crashed" not in cancelled.states()
    assert "runs_dir: may not be changed in a run of a deployment" in refused.now.state.message
    assert re.fullmatch(r"held-\d{4}-\d\d-\d\d", held.now.name)
    for run, name in ((held, "Held"), (refused, "Failed"), (cancelled, "Cancelled")):
        assert (run.states()[-1], run.now.run_count) == (name, 1)


def test_only_crashes_use_up_the_retries(scheduler, deploy, monkeypatch):
    """Without a worker: this test is the runs' processes, which are interrupted and crash."""
    from prefect.states import AwaitingRetry, Crashed, Pending, Running, Scheduled

    monkeypatch.setattr("flows.schedules.recovery._SETTLED", timedelta(seconds=10))
    night = Run.of(deploy("experiment=small", "--retries", "2"))

    def attempt(end: Any, then: str) -> None:
        seen = len(night.states())
        for state in (Pending(), Running(), end):
            night.set(state)
        wait_until(lambda: then in night.states()[seen + 2 :], lambda: f"{then}: {night.states()}")

    for _ in range(4):
        attempt(AwaitingRetry(), "AwaitingRetry")
    attempt(Crashed(), "Resuming")
    attempt(AwaitingRetry(), "AwaitingRetry")
    attempt(Crashed(), "Resuming")
    attempt(Crashed(), "Failed")
    night.show("interrupted five times, crashed three times")
    assert night.now.state.message.startswith("Not tried again: crashed 3 times")
    night.set(Scheduled())  # by hand, on the next morning
    attempt(Crashed(), "Resuming")


def test_a_night_that_begins_while_mlflow_is_away_is_done_when_it_is_back(scheduler, project, mlflow_server, deploy):
    overrides = ("sft.max_steps=2", "pipeline.sft.start=champion", f"tracking.uri={mlflow_server.url}")
    deployment = deploy("experiment=small", *overrides)
    mlflow_server.stop()
    night = Run.of(deployment)
    with scheduler.worker():
        night.wait_for("Outage")
        assert slots(deployment) == 0
        mlflow_server.start()
        night.wait_for("Completed")
    night.show("MLflow was away")
    assert "Failed" not in night.states() and "Crashed" not in night.states()
    assert [record["state"] for record in night.records(project)] == ["completed"]


def test_serve_keeps_the_schedule_without_a_server_of_the_users(project, tmp_path):
    home = tmp_path / "prefect"
    environment = {"PREFECT_HOME": str(home), "PREFECT_API_URL": None, "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    command = ["-m", "flows", "deploy", "experiment=small", *CRON, "--serve", "--json"]

    def serve() -> tuple[Process, str]:
        process = Process(command, environment, tmp_path)
        wait_until(lambda: "prefect" in process.text().split("\n")[0] and "\n" in process.text(), process.text)
        return process, json.loads(process.text().splitlines()[0])["prefect"]

    from prefect.settings import PREFECT_API_URL, temporary_settings

    process, url = serve()
    try:
        with temporary_settings({PREFECT_API_URL: url}):
            wait_until(lambda: served() is not None)
            night = Run.of(served())
            night.freeze(project, rows=20)
            os.kill(int(night.records(project)[-1]["pid"]), signal.SIGCONT)
            process.send(signal.SIGINT)
            assert process.wait() == 0, process.text()
    finally:
        process.kill()
    process, url = serve()
    try:
        with temporary_settings({PREFECT_API_URL: url}):
            night.wait_for("Completed")
            assert "AwaitingRetry" in night.states() and "Crashed" not in night.states()
        process.send(signal.SIGTERM)
        assert process.wait() == 0, process.text()
    finally:
        process.kill()
    trained_once(project)


def served() -> Any:
    """The deployment `small`, once it is there."""
    from flows.schedules.deployments import deployments

    return next((each for each in deployments() if each["name"] == "small"), None)
