"""What `ratchet plan` says of a pipeline that has run: what is cached, what is not, and why.

The runs are made by hand: real entries and records, with stand-ins for what the stages compute.
"""

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from conf.loader import dump
from flows.cli import main
from flows.compose import compose_run
from flows.references import pipeline_records
from flows.store import write_json
from tests.flows.standins import OVERRIDES, REWARD, ROWS, Project

STEPS = ["reinforce_audit", "sft", "pairs", "preference", "reinforce", "evaluate"]


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    """The configuration, composed once."""
    composed: dict[str, Any] = dump(compose_run(OVERRIDES).sections)
    return composed


@pytest.fixture
def project(tmp_path, values):
    """A project without any run."""
    return Project(tmp_path, values)


def test_nothing_was_made_yet(project):
    assert project.plan() == {
        "reinforce_audit": ("run", ["never made"]),
        "sft": ("run", ["never made"]),
        "pairs": ("run, after sft", []),
        "preference": ("run, after sft, pairs", []),
        "reinforce": ("run, after preference", []),
        "evaluate": ("run, after reinforce", []),
    }


FIRST = ("reinforce_audit", "sft")
"""The steps that need no other."""

WHY = [
    ({"evaluate.batch_size": 1}, {"evaluate": ["evaluate.batch_size 100 -> 1"]}),
    ({"reinforce.beta": 0.1}, {"reinforce": ["reinforce.beta 0.02 -> 0.1"]}),
    ({"sft.lora.r": 4, "sft.epochs": 2.0}, {"sft": ["sft.epochs 1.0 -> 2.0", "sft.lora.r 16 -> 4"]}),
    ({"suite.arithmetic.max_rows": 3}, {"evaluate": ["suite arithmetic: max_rows 16 -> 3"]}),
    ({"seed": 1}, {step: ["seed 0 -> 1"] for step in FIRST}),
    ({"hardware.threads": 99}, {step: ["hardware.threads 2 -> 99"] for step in FIRST}),
    ({"model.stop_tokens": ["<|start|>"]}, {step: ['model.stop_tokens [] -> ["<|start|>"]'] for step in FIRST}),
    ({"name": "another", "seed": 1}, {step: ["never made"] for step in FIRST}),
    ({"name": "another", "tracking.experiment": "x", "runs_dir": "./runs"}, {}),
]


@pytest.mark.parametrize(("changed", "why"), WHY, ids=[" ".join(changed) for changed, _ in WHY])
def test_a_change_reruns_what_reads_it_and_is_named(project, monkeypatch, changed, why):
    monkeypatch.setattr("stages.hardware.cores", lambda: [0, 1])
    project.run()
    assert project.why(**changed) == why


def test_an_edited_reward_and_a_new_row_are_named(project):
    project.run()
    (project.folder / "my_reward.py").write_text(REWARD.replace("1.0", "0.5"))
    why = ["reward file my_reward.py changed"]
    assert project.why() == {"reinforce_audit": why, "reinforce": why}
    plan = project.plan()
    assert {name for name, (state, _) in plan.items() if state == "cached"} == {"sft", "pairs", "preference"}
    project.run()
    (project.folder / "rows.csv").write_text(ROWS + "What is 1 + 1?,2\n")
    assert project.why() == {"reinforce_audit": ["data changed"], "sft": ["data changed"]}


def test_the_latest_run_of_the_same_name_is_compared_with(project):
    project.run()
    project.run(**{"reinforce.beta": 0.1})
    project.run(**{"name": "another", "reinforce.beta": 0.9})
    assert project.why(**{"reinforce.beta": 0.5}) == {"reinforce": ["reinforce.beta 0.1 -> 0.5"]}
    assert project.why() == {}


def test_a_start_that_came_out_otherwise_is_named(project):
    made = project.run()
    shutil.rmtree(made["sft"].path)
    assert project.plan()["sft"] == ("run", ["deleted"])
    project.run(until="sft", adapter="another")
    assert project.plan()["sft"] == ("cached", [])
    assert project.why() == {"pairs": ["start changed (sft)"]}


def test_an_interrupted_step_continues(project):
    entries = project.run()
    (entries["reinforce"].path / "result.json").unlink()
    plan = project.plan()
    assert plan["reinforce"] == ("run", ["interrupted, continues"])
    project.run(until="preference")
    record = pipeline_records(project.folder / "runs")[-1]
    record["steps"]["reinforce"] |= {"store": entries["reinforce"].id, "state": "failed"}
    write_json(project.folder / "runs/pipelines" / record["id"] / "pipeline.json", record)
    assert project.plan()["reinforce"] == ("run", ["failed, continues"])
    assert plan["evaluate"] == ("run, after reinforce", [])


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "delete":
        path.unlink()
    elif how == "truncate":
        path.write_bytes(content[:-3])  # of progress.jsonl: its last line is torn
    else:
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


def test_a_damaged_file_is_named_and_when_it_is_made_again_what_follows_stays_cached(project):
    made = project.run()
    cached = {step: ("cached", []) for step in STEPS}
    assert project.plan() == cached
    files = [path for step in ("sft", "pairs", "evaluate") for path in sorted(made[step].path.rglob("*.*"))]
    assert len(files) == 17
    for path, how in zip(files, itertools.cycle(["flip", "truncate", "delete"]), strict=False):
        step = next(step for step, entry in made.items() if path.is_relative_to(entry.path))
        damage(path, how)
        name = path.relative_to(made[step].path)
        assert project.why()[step] == [f"{name} is {'missing' if how == 'delete' else 'damaged'}"]
        assert project.run() == made, "the adapter has the recorded hash"
    assert project.plan() == cached


def test_an_adapter_that_comes_out_otherwise_reruns_what_follows(project):
    made = project.run()
    (made["sft"].path / "adapter/lineage.json").unlink()
    again = project.run(adapter="another")
    assert again["sft"] == made["sft"] and again["pairs"] != made["pairs"]
    (again["pairs"].path / "inputs.json").write_text("{")
    assert project.plan()["pairs"] == ("run", ["inputs.json is damaged"])


def test_the_table_is_readable_and_json_has_every_change(project, monkeypatch, capsys):
    monkeypatch.chdir(project.folder)
    project.run()
    many = [
        "reinforce.beta=0.1",
        "reinforce.lora.r=4",
        "reinforce.group_size=8",
        "reinforce.max_steps=9",
        "reinforce.resample=1",
    ]
    assert main(["plan", *OVERRIDES, *many]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.split(r"  +", lines[0]) == ["step", "stage", "start", "data", "reward", "store", "state"]
    (line,) = [line for line in lines if line.startswith("reinforce ")]
    assert re.search(r"run: (reinforce\.\w+\S* \S+ -> \S+, ){3}and 2 more$", line)
    assert main(["plan", *OVERRIDES, *many, "--json"]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out) if row["step"] == "reinforce"]
    assert row["state"] == "run" and len(row["changes"]) == 5
