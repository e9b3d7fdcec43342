"""Servers that go away: training goes on, nothing that was logged is missing afterwards, and nothing is there twice."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.cli import main
from flows.compose import compose_run
from flows.console import Console
from flows.flow_report import catch_up
from flows.record import Record
from flows.references import pipeline_records
from tests.flows.servers import Server

SFT = [
    "run",
    "experiment=smoke",
    "~pipeline.pairs",
    "~pipeline.preference",
    "~pipeline.reinforce",
    "~pipeline.evaluate",
]
STEPS = 6


@pytest.fixture
def at_row(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Do something as soon as a step has logged its n-th row."""
    actions: dict[int, Callable[[], None]] = {}
    show = Console.row

    def show_and_act(self, step, row):
        show(self, step, row)
        actions.pop(round(row["step"]), lambda: None)()

    monkeypatch.setattr(Console, "row", show_and_act)
    return lambda step, action: actions.update({step: action})


def rows_of(record: dict, runs_dir: Path) -> list[dict]:
    lines = (runs_dir / "store" / record["steps"]["sft"]["store"] / "progress.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def check_mirrored(uri: str, record: dict, runs_dir: Path) -> None:
    """MLflow has one run of the entry, with every row once, its result and its files, below the run of a pipeline."""
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("ratchet")
    query = f"tags.`ratchet.store` = '{record['steps']['sft']['store']}'"
    found = client.search_runs([experiment.experiment_id], query)
    own = [run for run in found if "ratchet.cached" not in run.data.tags]
    assert [run.info.status for run in own] == ["FINISHED"]
    run = own[0]
    rows = rows_of(record, runs_dir)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for name in ("loss", "time", "grad_norm"):
        history = client.get_metric_history(run.info.run_id, name)
        logged = sorted((metric.step, metric.value) for metric in history if metric.step)
        assert logged == [(row["step"], pytest.approx(row[name])) for row in rows]
    assert run.data.metrics["train_rows"] == record["steps"]["sft"]["metrics"]["train_rows"]
    assert run.data.params["sft.max_steps"] == str(STEPS)
    assert {"adapter", "receipt.json"} <= {item.path for item in client.list_artifacts(run.info.run_id)}
    parent = client.get_run(run.data.tags["mlflow.parentRunId"])
    assert parent.info.status == "FINISHED"


def away(database: Path) -> None:
    """Take the embedded database away, so that it cannot be made anew either."""
    database.rename(database.with_name("aside.db"))
    database.mkdir()


def back(database: Path) -> None:
    database.rmdir()
    database.with_name("aside.db").rename(database)


@pytest.fixture
def runs_dir(smoke: Path, tmp_path: Path) -> Path:
    """A runs directory with a database that is in use already: to make one takes MLflow seconds."""
    (tmp_path / "runs").mkdir()
    shutil.copy2(smoke / "mlflow.db", tmp_path / "runs" / "mlflow.db")
    return tmp_path / "runs"


def test_an_outage_in_mid_run_is_filled_in_when_the_step_ends(runs_dir, at_row, capsys):
    database = runs_dir / "mlflow.db"
    at_row(2, lambda: away(database))
    at_row(5, lambda: back(database))
    assert main([*SFT, f"sft.max_steps={STEPS}", f"runs_dir={runs_dir}"]) == 0
    said = capsys.readouterr().err
    assert said.count("cannot be used (") == 1 and said.count("is back") == 1
    record = pipeline_records(runs_dir)[-1]
    assert record["state"] == "completed" and record["mlflow_done"]
    check_mirrored(f"sqlite:///{database}", record, runs_dir)


def test_a_database_that_stays_away_is_filled_in_by_the_next_start(runs_dir, at_row, capsys):
    database = runs_dir / "mlflow.db"
    command = [*SFT, f"sft.max_steps={STEPS}", f"runs_dir={runs_dir}"]
    at_row(2, lambda: away(database))
    assert main(command) == 0
    assert "what MLflow has not got yet is sent by the next run" in capsys.readouterr().err
    assert main(command) == 2
    assert "tracking.uri: cannot use MLflow at sqlite:///" in capsys.readouterr().err
    back(database)
    assert main(command) == 0
    record, refused, again = pipeline_records(runs_dir)
    assert refused["state"] == "failed"
    assert again["steps"]["sft"]["state"] == "cached"
    check_mirrored(f"sqlite:///{database}", again, runs_dir)
    client = MlflowClient(f"sqlite:///{database}")
    assert client.get_run(record["mlflow_run"]).info.status == "FINISHED"
    assert client.get_run(again["steps"]["sft"]["mlflow_run"]).data.tags["ratchet.cached"] == "true"


def test_a_run_that_does_not_require_mlflow_is_sent_later(runs_dir, at_row, capsys):
    database = runs_dir / "mlflow.db"
    command = [*SFT, f"sft.max_steps={STEPS}", f"runs_dir={runs_dir}", "tracking.required=false"]
    away(database)
    assert main(command) == 0
    assert capsys.readouterr().err.count("cannot be used (") == 1
    back(database)
    assert main(command) == 0
    check_mirrored(f"sqlite:///{database}", pipeline_records(runs_dir)[-1], runs_dir)


@pytest.mark.slow
def test_a_database_that_is_deleted_in_mid_run_is_made_anew(runs_dir, at_row):
    database = runs_dir / "mlflow.db"
    at_row(2, database.unlink)
    assert main([*SFT, f"sft.max_steps={STEPS}", f"runs_dir={runs_dir}"]) == 0
    check_mirrored(f"sqlite:///{database}", pipeline_records(runs_dir)[-1], runs_dir)


def test_the_flow_run_of_a_run_that_died_does_not_stay_running(prefect_server, tmp_path):
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL
    from prefect.states import Running

    def never_called() -> None: ...

    with get_client(sync_client=True) as client:
        flow_run = client.create_flow_run(flow(never_called), state=Running())
    record = Record(compose_run(SFT[1:]), tmp_path, [])
    record.begin(prefect_run=str(flow_run.id), prefect_url=PREFECT_API_URL.value())
    catch_up(tmp_path)
    assert prefect_states(record.values) == ["Running"]  # it is alive
    record.release()
    catch_up(tmp_path)
    assert prefect_states(record.values) == ["Crashed"]
    assert pipeline_records(tmp_path)[0]["prefect_told"]


@pytest.mark.parametrize(("state", "attempt"), [("Running", 2), ("Scheduled", 1), ("Pending", 1)])
def test_an_attempt_that_died_says_nothing_of_the_next_one(state, attempt, prefect_server, tmp_path):
    """A run of a deployment is the same flow run again: it waits for its next attempt, or that one runs already."""
    from prefect import flow, states
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL

    def never_called() -> None: ...

    with get_client(sync_client=True) as client:
        flow_run = client.create_flow_run(flow(never_called), state=states.Running())
        for name in ("Crashed", state):
            client.set_flow_run_state(flow_run.id, getattr(states, name)(), force=True)
        assert client.read_flow_run(flow_run.id).run_count == attempt
    record = Record(compose_run(SFT[1:]), tmp_path, [])
    record.begin(prefect_run=str(flow_run.id), prefect_attempt=1, prefect_url=PREFECT_API_URL.value())
    record.release()
    catch_up(tmp_path)
    assert prefect_states(record.values) == [state]
    assert pipeline_records(tmp_path)[0]["prefect_told"]


def test_no_prefect_server_is_one_clear_line_soon(runs_dir, dead_port, capsys):
    from prefect.settings import PREFECT_API_URL, temporary_settings

    url = f"http://127.0.0.1:{dead_port}/api"
    started = time.monotonic()
    with temporary_settings({PREFECT_API_URL: url}):
        assert main([*SFT, f"runs_dir={runs_dir}"]) == 2
    assert time.monotonic() - started < 60  # Prefect by itself tries for minutes
    assert f"ratchet: PREFECT_API_URL: Prefect's server at {url} does not answer" in capsys.readouterr().err
    assert pipeline_records(runs_dir) == []


@pytest.mark.slow
def test_an_mlflow_server_that_is_restarted_in_mid_run_gets_every_row(
    mlflow_server, prefect_server, at_row, tmp_path, monkeypatch
):
    monkeypatch.setattr("flows.tracking._LONGEST_PAUSE", 0.5)  # the next try comes soon, however slow this one was
    monkeypatch.setattr("flows.tracking._SHARE", 1)
    seen: list[int] = []

    def look() -> None:
        client = MlflowClient(mlflow_server.url)
        run = client.search_runs(["1"], "attributes.run_name = 'sft'")[0]
        seen.extend(metric.step for metric in client.get_metric_history(run.info.run_id, "loss"))

    at_row(2, mlflow_server.stop)
    at_row(4, mlflow_server.start)
    at_row(STEPS, look)
    runs_dir = tmp_path / "runs"
    command = [*SFT, f"sft.max_steps={STEPS}", f"runs_dir={runs_dir}", f"tracking.uri={mlflow_server.url}"]
    assert main(command) == 0
    assert sorted(seen)[:5] == [1, 2, 3, 4, 5]  # filled in at the next row, and not only in the end
    check_mirrored(mlflow_server.url, pipeline_records(runs_dir)[-1], runs_dir)


@pytest.fixture
def own_prefect_server(tmp_path: Path) -> Iterator[Server]:
    environment = {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    module = "prefect server start --host 127.0.0.1 --port {port} --no-ui"
    server = Server(tmp_path, module, environment)
    server.start("/api/health")
    yield server
    server.stop()


@pytest.mark.slow
def test_a_prefect_server_that_is_stopped_in_mid_run_learns_the_outcome_later(
    own_prefect_server, tmp_path, at_row, capsys
):
    from prefect.settings import PREFECT_API_URL, temporary_settings

    def fail() -> None:
        raise OSError("the disk is on fire")

    command = [*SFT, f"sft.max_steps={STEPS}", f"runs_dir={tmp_path / 'runs'}"]
    with temporary_settings({PREFECT_API_URL: f"{own_prefect_server.url}/api"}):
        at_row(2, own_prefect_server.stop)
        at_row(3, fail)
        assert main(command) == 1
        said = capsys.readouterr().err
        assert "could not be told" in said and "ratchet: OSError: the disk is on fire" in said
        own_prefect_server.start("/api/health")
        at_row(4, own_prefect_server.stop)
        assert main(command) == 0
        assert "could not be told" in capsys.readouterr().err
        failed, completed = pipeline_records(tmp_path / "runs")
        assert (failed["state"], failed["prefect_told"]) == ("failed", True)
        assert (completed["state"], completed["prefect_told"]) == ("completed", False)
        own_prefect_server.start("/api/health")
        catch_up(tmp_path / "runs")
        assert prefect_states(failed) == ["Failed", "Failed"]
        assert prefect_states(completed) == ["Completed", "Completed"]


def prefect_states(record: dict) -> list[str]:
    """The states that the server has of a run, and of its only step."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(record["prefect_run"])
        tasks = client.read_task_runs(flow_run_filter=FlowRunFilter(id={"any_": [flow_run.id]}))
    return [flow_run.state.name, *(task.state.name for task in tasks)]
