"""What a sweep is made of, without running one: how far the store is for a cell, and the exit code."""

import errno

import pytest

from conf.errors import ConfigError
from flows.compose import compose_run
from flows.sweeps.cells import Ahead, Cell, chosen_of, gate_cell
from flows.sweeps.run import exit_code
from flows.workspace import Workspace
from tests.flows.sweeping import ALONE, Project


def test_a_disk_that_cannot_be_read_for_a_moment_ends_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Project(tmp_path, capsys)
    workspace = Workspace(compose_run(ALONE))
    entry = workspace.entry

    def stale(inputs):
        raise OSError(errno.ESTALE, "Stale file handle")

    ahead = Ahead(workspace)
    with monkeypatch.context() as broken:
        broken.setattr(workspace, "entry", stale)
        assert ahead.next() is None
    assert workspace.entry == entry
    assert str(ahead.next()).startswith("sft-")


def test_a_cell_knows_what_it_leaves_of_its_budget(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Project(tmp_path, capsys)
    config = compose_run(["experiment=asked", "sweep.budget.completions=40"])  # a step takes 4 x 4
    assert Cell(number=1, overrides=[], chosen=[], config=config).unspent == "8 completions of 'reinforce'"


def test_what_a_sweeper_chose_is_told_by_key_and_package():
    overrides = ["seed=1", "+data@data.more=qa", "+data@data.other=qa", "++sft={lora: {r: 2}}", "~pipeline.pairs"]
    chosen = chosen_of(overrides, {"seed", "data@data.other"})
    assert chosen == ["+data@data.more=qa", "++sft={lora: {r: 2}}", "~pipeline.pairs"]
    settings = Cell(number=1, overrides=overrides, chosen=chosen).settings
    assert settings == {"data@data.more": "qa", "sft": "{lora: {r: 2}}"}


def test_the_winners_cell_at_the_gate_is_called_by_its_settings():
    asked = ["experiment=ship", "reinforce.beta=0.1"]
    winner = Cell(number=1, overrides=[*asked, "~pipeline.gate"], chosen=asked[1:], whole=compose_run(asked))
    cell = gate_cell(5, winner)
    assert cell.label == "cell 5  reinforce.beta=0.1 to the gate" and cell.settings == {"reinforce.beta": "0.1"}
    assert cell.overrides == [*asked, "++pipeline.gate.set.register=true"]


STEPS = [
    "reinforce.max_steps=3",
    "++reinforce.max_steps=3",
    "reinforce={max_steps: 3}",
    "reinforce={beta:0.1,max_steps:3}",
    "+reinforce={max_steps: null}",
]


@pytest.mark.parametrize("override", STEPS)
def test_a_number_of_steps_beside_a_budget_is_refused_however_it_is_given(override, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Project(tmp_path, capsys)
    said = r"^reinforce\.max_steps: sweep\.budget decides the number of steps; leave one of them out$"
    with pytest.raises(ConfigError, match=said):
        compose_run(["experiment=asked", "sweep.budget.completions=40", override])
    with pytest.raises(ConfigError, match=said):
        compose_run(["experiment=asked", "sweep={budget: {completions: 40}}", override])
    assert compose_run(["experiment=asked", override]).settings["reinforce"].max_steps in (3, None)


def test_a_section_that_says_nothing_of_the_steps_goes_with_a_budget(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Project(tmp_path, capsys)
    config = compose_run(["experiment=asked", "sweep.budget.completions=40", "reinforce={beta: 0.1, lora: {r: 2}}"])
    assert (config.settings["reinforce"].max_steps, config.settings["reinforce"].lora.r) == (2, 2)


def test_a_section_is_refused_only_for_what_a_step_pins(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Project(tmp_path, capsys)
    pinned = ["experiment=asked", "+pipeline.reinforce.set={lora: {r: 4}}"]
    assert compose_run([*pinned, "reinforce={beta: 0.1, lora: {alpha: 2}}"]).settings["reinforce"].beta == 0.1
    with pytest.raises(
        ConfigError, match=r"^reinforce\.lora\.r: .* override pipeline\.reinforce\.set\.lora\.r instead"
    ):
        compose_run([*pinned, "reinforce={beta: 0.1, lora: {r: 2}}"])


@pytest.mark.parametrize(
    ("codes", "shipped", "expected"),
    [
        ({1: 0, 2: 0}, None, 0),
        ({3: 2, 1: 0, 2: 1}, None, 1),  # 3 ended first
        ({1: 0, 2: 1}, {"code": 0}, 0),
        ({1: 0, 2: 1}, {"code": 3}, 3),
        ({1: 0, 2: 1}, {"code": 4}, 4),
    ],
)
def test_the_exit_code_is_that_of_the_winners_gate_else_of_the_first_cell_that_failed(codes, shipped, expected):
    assert exit_code({number: {"code": code} for number, code in codes.items()}, shipped) == expected
