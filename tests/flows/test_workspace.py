"""The workspace of a run: what is resolved before any model is loaded."""

import json

import pytest

from flows.compose import compose_run
from flows.store import Store, write_json
from flows.workspace import Workspace
from stages.contract import StageResult


def record(runs_dir, name, store):
    """Leave the record of a pipeline run with one step, as far as references read it."""
    folder = runs_dir / "pipelines" / name
    folder.mkdir(parents=True)
    steps = {"sft": {"store": store}}
    values = {"id": name, "state": "completed", "verdict": None, "started": name, "steps": steps}
    write_json(folder / "pipeline.json", values)


@pytest.fixture
def runs_dir(tmp_path, tiny):
    """A runs directory with one finished run of one step, which left the tiny model itself."""
    store = Store(tmp_path)
    store.prepare()
    entry = store.entry("sft", "abc")
    entry.path.mkdir()
    entry.write_result(StageResult(model=tiny), 1.0)
    record(tmp_path, "run-1", entry.id)
    return tmp_path


def workspace(runs_dir, *overrides):
    return Workspace(compose_run(["experiment=smoke", f"runs_dir={runs_dir}", *overrides]))


def test_latest_means_what_it_meant_before_the_run_began(runs_dir, tiny):
    started = workspace(runs_dir, "pipeline.sft.start=run/latest")
    started.check()
    record(runs_dir, "run-2", None)  # the run under way: the latest one now, with nothing done
    assert started.inputs("sft", {}).models["start"].identity == tiny.identity


def test_prepared_rows_that_are_gone_are_made_again(runs_dir):
    made = workspace(runs_dir).prepared("arithmetic")
    content = made["train"].read_bytes()
    made["train"].unlink()
    assert workspace(runs_dir).prepared("arithmetic")["train"].read_bytes() == content
    assert json.loads(content.splitlines()[0])
