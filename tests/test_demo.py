"""The demo as a user runs it, on the real model: every stage adds what it should, and the fold's receipts hold."""

import json
from pathlib import Path

import pytest

from flows.cli import main
from flows.references import find_run, pipeline_records


@pytest.fixture(scope="module")
def demo(prefect_server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs directory of one finished `ratchet run experiment=demo`."""
    runs_dir = tmp_path_factory.mktemp("demo") / "runs"
    assert main(["run", "experiment=demo", f"runs_dir={runs_dir}"]) == 0
    return runs_dir


@pytest.mark.slow
def test_the_demo_learns_to_add(demo):
    metrics = pipeline_records(demo)[0]["steps"]["evaluate"]["metrics"]
    accuracy = {name: metrics[f"arithmetic.{name}"] for name in ("base", "sft", "preference", "reinforce")}
    print(accuracy)
    assert metrics["rows.arithmetic"] >= 200
    assert accuracy["base"] < 0.3
    assert accuracy["sft"] > accuracy["base"] + 0.2
    assert accuracy["reinforce"] > accuracy["preference"] + 0.03


@pytest.mark.slow
@pytest.mark.parametrize("step", ["sft", "preference", "reinforce"])
def test_every_fold_proves_itself(demo, step):
    receipt = json.loads((find_run(demo, f"latest/{step}").entry.path / "receipt.json").read_text())
    print(receipt)
    logits = receipt["logits"]
    assert logits["folded_vs_adapter"] < logits["adapter_vs_base"] / 10
