"""A gate in a pipeline: exit codes, Prefect's states, what is skipped behind it, and what does not depend on it."""

import json
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError
from conf.run import load_run
from flows.cli import main
from flows.outcome import worst
from flows.references import pipeline_records
from tests.flows.prefect_states import prefect_states

COLORS = ("red", "blue", "green", "pink", "grey")
CONF = {
    "data/asked.yaml": "# @package data.asked\nsource: asked.jsonl\nprompt: ask\nresponse: say\nreference: say\n",
    "reward/exact.yaml": "# @package reward.exact\nexact: {type: exact}\n",
    "suite/task.yaml": "# @package suite.task\ndata: asked\nreward: exact\nmax_new_tokens: 4\n",
}
PIPELINE = [
    "+pipeline.sft={stage: sft, start: base, data: asked}",
    "+pipeline.between={stage: gate, start: sft, baseline: base}",
    "+pipeline.more={stage: sft, start: between, data: asked}",
    "+pipeline.after_more={stage: evaluate, start: more}",
    "+pipeline.aside={stage: evaluate, start: sft}",
]


@pytest.fixture
def run(prefect_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """Runs a small pipeline with a gate in the middle; returns the exit code and what `--json` printed."""
    monkeypatch.chdir(tmp_path)
    for name, text in CONF.items():
        (tmp_path / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / name).write_text(text)
    rows = [{"ask": f"{color} {number}?", "say": "yes"} for color in COLORS for number in range(60)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["model=tiny", "data=[asked]", "reward=[exact]", "suite=[task]", *PIPELINE]
    options += ["sft.batch_size=8", "sft.n_samples=0", "sft.learning_rate=2e-2"]

    def go(*overrides: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = main(["run", "--json", *options, *overrides])
        return code, json.loads(capsys.readouterr().out)

    return go


def states(record: Any) -> dict[str, str]:
    return {name: step["state"] for name, step in record["steps"].items()}


def test_what_follows_a_gate_that_does_not_ship_is_skipped(run, tmp_path, capsys):
    code, record = run("sft.max_steps=1")  # which is not enough to learn anything
    assert (code, record["state"], record["verdict"]) == (4, "completed", "inconclusive")
    done = {"sft": "completed", "between": "completed", "aside": "completed"}
    assert states(record) == {**done, "more": "skipped", "after_more": "skipped"}
    assert record["steps"]["after_more"]["error"] == "held by between"
    assert record["steps"]["between"]["metrics"]["gain.task.baseline"] == 0
    assert prefect_states(record) == (
        "Inconclusive",
        {"sft": "Completed", "between": "Inconclusive", "aside": "Completed"},
    )
    assert main(["plan", "--json", *record["overrides"]]) == 0
    planned = {row["step"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    assert planned["more"] == planned["after_more"] == "not run, between holds"


def test_behind_a_gate_that_ships_all_goes_on_and_a_fall_is_held(run, tmp_path):
    """The second gate looks at a base that does worse than what was trained."""
    final = "+pipeline.final={stage: gate, start: base, baseline: sft, after: [aside]}"
    code, record = run("sft.max_steps=30", final)
    assert (code, record["verdict"]) == (3, "hold")
    assert set(states(record).values()) == {"completed"}
    run_state, steps = prefect_states(record)
    assert (run_state, steps["between"], steps["final"]) == ("Held", "Shipped", "Held")
    assert "HOLD" in record["steps"]["final"]["report"]
    again, cached = run("sft.max_steps=30", final)
    assert (again, set(states(cached).values())) == (3, {"cached"})
    assert prefect_states(cached)[0] == "Held"
    assert pipeline_records(tmp_path / "runs")[-1]["verdict"] == "hold"


@pytest.mark.parametrize(
    ("verdicts", "of_run"),
    [
        ([], None),
        ([None, None], None),
        ([None, "ship"], "ship"),
        (["ship", "hold", None], "hold"),
        (["hold", "ship"], "hold"),
        (["inconclusive", "ship"], "inconclusive"),
        (["hold", "stop", "inconclusive"], "stop"),
        (["otherwise", "ship"], "ship"),
    ],
)
def test_a_run_goes_as_well_as_its_worst_gate(verdicts, of_run):
    assert worst(verdicts) == of_run


REGISTERING = {"stage": "gate", "baseline": "base", "set": {"register": True}}


@pytest.mark.parametrize(
    ("step", "suites", "message"),
    [
        ({"stage": "gate"}, {}, "a gate step needs 'baseline'"),
        ({"stage": "gate", "baseline": "base"}, {"role": "general"}, "needs a suite with role: task"),
        ({"stage": "gate", "baseline": "base"}, {"split": "train"}, "suite.s.split: got train; .* of the gate split"),
        (REGISTERING, {"split": "select"}, "got select; .* no choice has looked at"),
        ({"stage": "evaluate", "anchor": "base"}, {}, "a evaluate step takes no anchor"),
        ({"stage": "evaluate", "start": "nothing"}, {}, "there is no step 'nothing'"),
    ],
)
def test_a_gate_that_cannot_decide_is_refused(step, suites, message):
    with pytest.raises(ConfigError, match=message):
        one_step(step, suites)


def test_a_gate_that_registers_nothing_may_look_at_what_choices_look_at():
    one_step({"stage": "gate", "baseline": "base"}, {"split": "select"})


def one_step(step, suite):
    """A pipeline of one step, with one suite."""
    values = {"pipeline": {"g": step}, "suite": {"s": {"data": "d", "reward": "r", **suite}}}
    rest = {"data": {"d": {"source": "d.csv"}}, "reward": {"r": {"exact": {"type": "exact"}}}}
    return load_run({**values, **rest})
