"""The workspace of a run: what is resolved before any model is loaded."""

from dataclasses import replace

import pytest

from conf.errors import UserError
from conf.loader import dump
from conf.schema import Split, SuiteRole
from flows.commands.run import run_pipeline
from flows.compose import compose_run
from flows.posttrain import open_run
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


def test_prepared_rows_that_are_damaged_are_made_again(runs_dir):
    opened = workspace(runs_dir)
    folder = opened.suites.prepared("arithmetic")["train"].parent
    files = {path: path.read_bytes() for path in folder.iterdir()}
    assert {path.name for path in files} == {"train.jsonl", "select.jsonl", "gate.jsonl", "hashes.json"}
    for path, content in files.items():
        for damaged in (None, b"", content[:-9], bytes([content[0] ^ 1]) + content[1:]):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            opened.suites.prepared("arithmetic")
            assert {path: path.read_bytes() for path in folder.iterdir()} == files
    assert [path.name for path in folder.parent.glob(".data-*")] == [f".{folder.name}.lock"]


def test_both_entrances_try_the_rewards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("open('tried', 'a').write('once ')\nreward = None\n")
    config = compose_run(["experiment=smoke", "+reward.arithmetic.mine={type: custom, path: mine.py}"])
    for enter in (run_pipeline, lambda config, overrides: open_run(dump(config.sections), overrides)):
        with pytest.raises(UserError, match="reward 'mine': path: "):
            enter(config, [])
    assert (tmp_path / "tried").read_text() == "once once "


def test_a_suite_is_known_by_what_determines_its_scores(runs_dir):
    added = ["+reward.other={numeric: {type: numeric}}", "+reward.heavy={numeric: {type: numeric, weight: 2}}"]
    opened = workspace(runs_dir, *added)
    written = opened.config.suites["arithmetic"]

    def suite_id(**changes):
        return opened.suites.as_stage({"named": replace(written, **changes)})["named"].id

    for same in ({"role": SuiteRole.general}, {"tolerance": 0.3}, {"reward": "other"}, {"temperature": 2.0}):
        assert suite_id(**same) == suite_id(), same
    for other in ({"max_rows": 3}, {"max_new_tokens": 3}, {"samples": 2}, {"reward": "heavy"}, {"split": Split.select}):
        assert suite_id(**other) != suite_id(), other
    assert suite_id(information="arithmetic") != suite_id()
    assert suite_id(samples=2, temperature=2.0) != suite_id(samples=2)


def test_every_start_on_the_way_is_scored(runs_dir, tiny):
    def labels(*overrides):
        opened = workspace(runs_dir, *overrides)
        results = {name: StageResult(model=tiny) for name in opened.config.steps}
        return list(opened.inputs("evaluate", results).models)

    steps = ["sft", "preference", "reinforce_probe", "reinforce"]
    assert labels() == ["start", "baseline", *(f"chain.{name}" for name in ["base", *steps])]
    assert labels("pipeline.sft.start=run/latest")[2:] == [f"chain.{name}" for name in ["run/latest", *steps]]
    assert labels("pipeline.sft.start=last:run/latest", "+pipeline.evaluate.models=[first:base]")[2:] == [
        *(f"chain.{name}" for name in ["last", *steps]),
        "models.first",
    ]
    assert labels("pipeline.evaluate.start=base") == ["start", "baseline"]


def test_a_source_with_a_share_of_its_own(tmp_path):
    def identities(*overrides):
        opened = workspace(tmp_path, "data=[arithmetic,general]", "suite=[arithmetic,general]", *overrides)
        opened.store.prepare()
        assert opened.suites.prepared("general")["train"].read_text() == ""
        suites = opened.inputs("sft", {}).suite_ids, opened.suites.identity("general", opened.config.suites["general"])
        return opened.inputs("sft", {}).fingerprint, suites[1]["rows"], opened.suites.prepared("general")["gate"]

    sft, general, gate = identities("reward=[arithmetic,exact_number,row_pattern]")
    other_sft, *same = identities("reward=[arithmetic,exact_number,row_pattern]", "held_out=0.3")
    assert same == [general, gate], "the run's share is not its own"
    assert general["held_out"] == 1 and other_sft != sft
