"""What a user relies on after `ratchet run`: the record, the store, tracking, Prefect's states, and reuse."""

import json
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient
from pyarrow import parquet
from transformers import AutoModelForCausalLM

from conf.schema import TrackingConfig
from flows.cli import main
from flows.fingerprint import digest
from flows.references import find_run
from flows.references import pipeline_records as records
from flows.tracking import Tracker
from tests.flows.prefect_states import prefect_states

STEPS = ["reinforce_audit", "sft", "pairs", "preference", "reinforce_probe", "reinforce", "evaluate"]


def test_the_record_says_what_happened(smoke):
    record = records(smoke)[0]
    assert (record["state"], record["name"], record["verdict"]) == ("completed", "smoke", None)
    assert list(record["steps"]) == STEPS
    assert {step["state"] for step in record["steps"].values()} == {"completed"}
    assert record["config"]["model"]["id"] == "tiny:random"
    assert record["versions"]["torch"] and record["overrides"][0] == "experiment=smoke"


def test_the_store_holds_what_a_stage_leaves(smoke):
    for name, step in records(smoke)[0]["steps"].items():
        entry = smoke / "store" / step["store"]
        files = {path.name for path in entry.iterdir()}
        assert {"result.json", "config.yaml", "inputs.json"} <= files
        assert entry.name == f"{step['stage']}-{digest(json.loads((entry / 'inputs.json').read_text()))}"
        if name in ("sft", "preference", "reinforce"):
            assert {"adapter", "progress.jsonl", "receipt.json", "samples.jsonl"} <= files
            assert (entry / "adapter" / "lineage.json").is_file()


def test_every_training_step_adds_one_adapter_to_the_chain(smoke):
    chain = {name: find_run(smoke, f"latest/{name}").model().adapters for name in STEPS}
    assert [len(chain[name]) for name in STEPS] == [0, 1, 1, 2, 2, 3, 3]
    assert chain["reinforce"][:2] == chain["preference"]
    assert chain["evaluate"] == chain["reinforce"]


def test_evaluation_scores_every_model_of_the_chain(smoke):
    metrics = records(smoke)[0]["steps"]["evaluate"]["metrics"]
    models = ["base", "sft", "preference", "reinforce"]
    assert all(0 <= metrics[f"arithmetic.{model}"] <= 1 for model in models)
    assert all(f"arithmetic.{model}.stderr" in metrics for model in models)


def test_mlflow_has_a_parent_and_a_child_per_step(smoke):
    client = MlflowClient(f"sqlite:///{smoke / 'mlflow.db'}")
    record = records(smoke)[0]
    experiment = client.get_experiment_by_name("ratchet")
    assert experiment.artifact_location == (smoke / "mlartifacts").as_uri()
    assert client.get_run(record["mlflow_run"]).info.status == "FINISHED"
    for name, step in record["steps"].items():
        run = client.get_run(step["mlflow_run"])
        assert run.info.status == "FINISHED"
        assert run.data.tags["mlflow.parentRunId"] == record["mlflow_run"]
        assert run.info.run_name == name


def test_mlflow_has_every_progress_row_at_its_step(smoke):
    client = MlflowClient(f"sqlite:///{smoke / 'mlflow.db'}")
    step = records(smoke)[0]["steps"]["reinforce"]
    lines = (smoke / "store" / step["store"] / "progress.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == [1, 2, 3]
    wanted = {"step", "epoch", "time", "loss", "reward", "reward_std", "kl", "completion_len", "learning_rate"}
    assert wanted | {"reward_numeric", "reward_length"} <= set(rows[0])
    for name in wanted - {"step"}:
        history = client.get_metric_history(step["mlflow_run"], name)
        logged = {metric.step: metric.value for metric in history if metric.step}
        assert logged == {row["step"]: pytest.approx(row[name]) for row in rows}
    artifacts = {item.path for item in client.list_artifacts(step["mlflow_run"])}
    assert {"adapter", "receipt.json", "samples.jsonl"} <= artifacts


def test_a_second_run_takes_everything_from_the_store(smoke, tmp_path, capsys):
    runs_dir = shutil.copytree(smoke, tmp_path / "moved")
    assert main(["run", "experiment=smoke", "name=again", f"runs_dir={runs_dir}"]) == 0
    assert capsys.readouterr().err.count("cached (") == len(STEPS)
    again = next(record for record in records(runs_dir) if record["name"] == "again")
    assert {step["state"] for step in again["steps"].values()} == {"cached"}
    assert {name: step["store"] for name, step in again["steps"].items()} == {
        name: step["store"] for name, step in records(smoke)[0]["steps"].items()
    }
    assert prefect_states(again) == ("Completed", dict.fromkeys(STEPS, "Cached"))


def test_prefect_knows_each_step_as_a_task(smoke):
    assert prefect_states(records(smoke)[0]) == ("Completed", dict.fromkeys(STEPS, "Completed"))


def test_a_damaged_entry_is_made_again_and_its_descendants_are_kept(smoke, tmp_path, prefect_server, capsys):
    runs_dir = shutil.copytree(smoke, tmp_path / "runs")
    store = find_run(runs_dir, "latest/sft").entry
    weights = store.path / "adapter" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8] + b"damaged!")
    assert main(["plan", "experiment=smoke", f"runs_dir={runs_dir}"]) == 0
    assert "run: adapter/adapter_model.safetensors is damaged\n" in capsys.readouterr().out
    assert main(["run", "experiment=smoke", "name=mended", f"runs_dir={runs_dir}"]) == 0
    assert "sft: adapter/adapter_model.safetensors is damaged; it is made again" in capsys.readouterr().err
    states = {name: step["state"] for name, step in _named(runs_dir, "mended")["steps"].items()}
    assert states == {**dict.fromkeys(STEPS, "cached"), "sft": "completed"}


def test_a_changed_setting_reruns_only_what_depends_on_it(smoke, tmp_path, capsys):
    runs_dir = shutil.copytree(smoke, tmp_path / "runs")
    capsys.readouterr()
    assert main(["plan", "experiment=smoke", "reinforce.beta=0.5", f"runs_dir={runs_dir}", "--json"]) == 0
    plan = {row["step"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    assert plan == {**dict.fromkeys(STEPS, "cached"), "reinforce": "run", "evaluate": "run, after reinforce"}


@pytest.mark.parametrize("override", ["name=other", "tracking.experiment=x", "seed=0", "evaluate.batch_size=100"])
def test_what_changes_nothing_keeps_everything_cached(smoke, override, capsys):
    capsys.readouterr()
    assert main(["plan", "experiment=smoke", override, f"runs_dir={smoke}", "--json"]) == 0
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"cached"}


def test_a_failed_step_is_recorded_and_the_rest_skipped(smoke, tmp_path, prefect_server, capsys):
    runs_dir = shutil.copytree(smoke, tmp_path / "runs")
    # No pair can differ by more than the whole range of the rewards.
    assert main(["run", "experiment=smoke", "name=bad", "pairs.min_gap=99", f"runs_dir={runs_dir}"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("ratchet: ") and "min_gap" in message
    record = _named(runs_dir, "bad")
    assert record["state"] == "failed"
    states = {name: step["state"] for name, step in record["steps"].items()}
    assert states == {
        **dict.fromkeys(STEPS, "skipped"),
        "reinforce_audit": "cached",
        "sft": "cached",
        "pairs": "failed",
    }


def test_export_loads_with_plain_transformers(smoke, tmp_path, capsys):
    out = tmp_path / "model"
    assert main(["export", "latest", "--out", str(out), "--runs-dir", str(smoke)]) == 0
    assert "3 adapters folded in" in capsys.readouterr().out
    assert AutoModelForCausalLM.from_pretrained(out).num_parameters() > 0


def _named(runs_dir: Path, name: str) -> dict:
    return next(record for record in records(runs_dir) if record["name"] == name)


def test_mlflow_shows_the_scores_as_a_table_however_often_it_is_sent(smoke):
    step = records(smoke)[0]["steps"]["evaluate"]
    path = smoke / "store" / step["store"] / "scores.parquet"
    tracker = Tracker(TrackingConfig(), smoke)
    tracker.table(step["mlflow_run"], path)
    tags = tracker.client.get_run(step["mlflow_run"]).data.tags
    assert json.loads(tags["mlflow.loggedArtifacts"]) == [{"path": "scores.json", "type": "table"}]
    sent = json.loads(Path(tracker.client.download_artifacts(step["mlflow_run"], "scores.json")).read_text())
    rows = parquet.read_table(path).to_pylist()
    assert [dict(zip(sent["columns"], row, strict=True)) for row in sent["data"]] == rows
    assert len(rows) == 4 * 16 and {"reward.numeric", "completion", "prompt", "tokens"} <= set(rows[0])


def test_scores_are_kept_for_other_evaluations(smoke, tmp_path, prefect_server, capsys):
    runs_dir = shutil.copytree(smoke, tmp_path / "runs")
    kept = set((runs_dir / "store" / "scores").iterdir())
    assert len([path for path in kept if path.suffix == ".json"]) == 5  # four models, and the last one in other batches
    arguments = ["run", "experiment=smoke", "name=again", f"runs_dir={runs_dir}", "evaluate.n_samples=1"]
    assert main(arguments) == 0
    assert capsys.readouterr().err.count("its scores are known") == 4
    before, after = records(smoke)[0]["steps"]["evaluate"], _named(runs_dir, "again")["steps"]["evaluate"]
    assert (after["state"], after["metrics"]) == ("completed", before["metrics"])
    assert set((runs_dir / "store" / "scores").iterdir()) == kept
