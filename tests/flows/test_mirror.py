"""MLflow's view of a store entry follows the entry's files, however often and in however many pieces they are sent."""

import json
import shutil

import pytest
from mlflow import MlflowClient

from conf.schema import TrackingConfig
from flows.entry_mirror import EntryMirror
from flows.progress_log import ProgressLog
from flows.store import Entry
from flows.tracking import Tracker


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def tracker(smoke, tmp_path, said) -> Tracker:
    shutil.copy2(smoke / "mlflow.db", tmp_path / "mlflow.db")
    return Tracker(TrackingConfig(), tmp_path, said.append)


@pytest.fixture
def entry(tmp_path) -> Entry:
    """An entry whose stage has begun."""
    (tmp_path / "store" / "sft-abc").mkdir(parents=True)
    (tmp_path / "store" / "sft-abc" / "config.yaml").write_text("{stage: sft, settings: {lora: {r: 8}}, seed: 3}")
    return Entry(tmp_path / "store" / "sft-abc")


def losses(tracker: Tracker, run: str) -> list[tuple[int, float]]:
    history = MlflowClient(tracker.uri).get_metric_history(run, "loss")
    return sorted((metric.step, metric.value) for metric in history)


def test_what_is_sent_again_counts_once(tracker, entry):
    log = ProgressLog(entry.path / "progress.jsonl")
    for step in range(1, 121):
        log.add({"step": step, "loss": 1 / step})
    mirror = EntryMirror(tracker, entry, "first", "pipeline")
    assert tracker.attempt(lambda: mirror.send("0" * 32))
    sent = json.loads((entry.path / "tracking.json").read_text())
    assert sent["rows"] == 120
    for lost in ({"rows": 3, "last_row": log.rows[2]["timestamp"]}, {"params": False}, {"run": None}):
        (entry.path / "tracking.json").write_text(json.dumps({**sent, **lost}))  # as if killed before it was noted
        assert tracker.attempt(lambda: EntryMirror(tracker, entry, "again", "another").send("0" * 32))
    assert mirror.run is not None
    assert losses(tracker, mirror.run) == [(step, pytest.approx(1 / step)) for step in range(1, 121)]
    assert json.loads((entry.path / "tracking.json").read_text()) == sent
    run = MlflowClient(tracker.uri).get_run(mirror.run)
    assert run.data.params == {"sft.lora.r": "8", "seed": "3"} and run.info.run_name == "first"


def test_rows_that_were_replaced_are_sent(tracker, entry):
    log = ProgressLog(entry.path / "progress.jsonl")
    mirror = EntryMirror(tracker, entry, "sft", "pipeline")
    for loss in (3.0, 2.0):
        for step in (1, 2, 3):
            log.add({"step": step, "loss": loss if step > 1 else 9.0})
        tracker.attempt(lambda: mirror.send("0" * 32))
    assert mirror.run is not None
    assert set(losses(tracker, mirror.run)) == {(1, 9.0), (2, 3.0), (3, 3.0), (2, 2.0), (3, 2.0)}
    assert MlflowClient(tracker.uri).get_run(mirror.run).data.metrics["loss"] == 2.0


def test_what_mlflow_refuses_is_said_once_and_holds_up_nothing(tracker, entry, said):
    log = ProgressLog(entry.path / "progress.jsonl")
    mirror = EntryMirror(tracker, entry, "sft", "pipeline")
    for step in (1, 2):
        log.add({"step": step, "loss$": 1.0})
        assert tracker.attempt(lambda: mirror.send("0" * 32))
    assert len(said) == 1 and "MLflow refuses metrics" in said[0] and "loss$" in said[0]
    log.add({"step": 3, "loss": 1.0})
    assert tracker.attempt(lambda: mirror.send("0" * 32))
    assert mirror.run is not None and losses(tracker, mirror.run) == [(3, 1.0)]


def test_a_run_that_a_user_deleted_stays_deleted_once_it_is_complete(tracker, entry):
    client = MlflowClient(tracker.uri)
    (entry.path / "result.json").write_text('{"metrics": {"train_rows": 4}, "artifacts": {}}')
    mirror = EntryMirror(tracker, entry, "sft", "pipeline")
    tracker.attempt(lambda: mirror.send("0" * 32))
    assert mirror.run is not None and client.get_run(mirror.run).info.status == "FINISHED"
    client.delete_run(mirror.run)
    again = EntryMirror(tracker, entry, "sft", "pipeline")
    tracker.attempt(lambda: again.send("0" * 32))
    assert again.run == mirror.run and client.get_run(mirror.run).info.lifecycle_stage == "deleted"
