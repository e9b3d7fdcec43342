"""What changes a fingerprint, and what must not."""

import shutil
from pathlib import Path

import pytest

from flows.compose import compose_run
from flows.fingerprint import code_digest, digest
from flows.workspace import Workspace

ROWS = "question,answer\n" + "".join(f"What is {n} + 1?,{n + 1}\n" for n in range(60))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A directory with data and a reward of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text(ROWS)
    (tmp_path / "mine.py").write_text("def reward(completion):\n    return len(completion) / 100\n")
    return tmp_path


OVERRIDES = (
    "experiment=smoke",
    "data.arithmetic.source=rows.csv",
    "~data.arithmetic.args",
    "+reward.arithmetic.mine={type: custom, path: mine.py}",
    "pipeline.reinforce.start=base",
    "+pipeline.reinforce.probe=false",  # it would have to run first
)


def fingerprint(step: str, *overrides: str) -> str:
    return Workspace(compose_run([*OVERRIDES, *overrides])).inputs(step, {}).fingerprint


CHANGES = [
    ("sft", "sft.learning_rate=1e-3"),
    ("sft", "sft.lora.r=4"),
    ("sft", "seed=1"),
    ("sft", "held_out=0.3"),
    ("sft", "hardware.threads=1"),
    ("sft", "hardware.dtype=bfloat16"),
    ("sft", "+model.chat_template_kwargs.thinking=false"),
    ("sft", "++data.arithmetic.system=Be brief."),
    ("reinforce", "reinforce.beta=0.3"),
    ("reinforce", "reward.arithmetic.numeric.weight=2"),
    ("reinforce", "+pipeline.reinforce.set.beta=0.5"),
]
KEEPS = [
    ("sft", "name=other"),
    ("sft", "runs_dir=elsewhere"),
    ("sft", "tracking.experiment=other"),
    ("sft", "reinforce.beta=0.3"),
    ("sft", "reward.arithmetic.numeric.weight=2"),
    ("reinforce", "sft.learning_rate=1e-3"),
    ("reinforce", "suite.arithmetic.max_rows=3"),
]


@pytest.mark.parametrize(("step", "override"), CHANGES, ids=[override for _, override in CHANGES])
def test_what_can_change_the_outcome_changes_the_fingerprint(project, step, override):
    assert fingerprint(step, override) != fingerprint(step)


@pytest.mark.parametrize(("step", "override"), KEEPS, ids=[f"{step} {override}" for step, override in KEEPS])
def test_what_cannot_does_not(project, step, override):
    assert fingerprint(step, override) == fingerprint(step)


def test_the_content_of_data_and_of_reward_files_counts_and_their_place_does_not(project, tmp_path, monkeypatch):
    before = {step: fingerprint(step) for step in ("sft", "reinforce")}
    moved = Path(shutil.copytree(project, tmp_path / "moved"))
    monkeypatch.chdir(moved)
    assert {step: fingerprint(step) for step in before} == before
    (moved / "mine.py").write_text("def reward(completion):\n    return len(completion) / 99\n")
    assert fingerprint("sft") == before["sft"]
    assert fingerprint("reinforce") != before["reinforce"]
    (moved / "rows.csv").write_text(ROWS + "What is 1 + 1?,2\n")
    assert fingerprint("sft") != before["sft"]


def test_the_order_of_keys_does_not_count():
    assert digest({"a": 1, "b": {"c": 2, "d": 3}}) == digest({"b": {"d": 3, "c": 2}, "a": 1})


def test_code_is_counted_by_what_a_stage_imports():
    assert code_digest("stages.sft") != code_digest("stages.reinforce")
