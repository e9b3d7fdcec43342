"""The audit from outside: the command, and a run that it stops before anything trains."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.references import pipeline_records

LENGTH_ALONE = [
    "experiment=smoke",
    "reward.arithmetic.numeric.weight=0",
    "+reward.arithmetic.digits.weight=0",
    "+pipeline.reinforce.probe=false",
]


@pytest.fixture
def audit(tmp_path: Path, capsys: Any) -> Any:
    """Runs the command with a runs directory of its own; returns the exit code and what it printed."""

    def go(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["audit", *arguments, f"runs_dir={tmp_path}/runs"])
        return code, capsys.readouterr().out

    return go


def test_it_prints_a_table_and_says_what_to_watch(audit):
    code, shown = audit("experiment=tool_calls")
    assert code == 0
    assert shown.startswith("reinforce_audit: reward tool_calls on 200 training rows of tool_calls\n")
    assert "one_tool " in shown and "WARNING: " in shown and "Nothing stops." in shown


def test_a_reward_that_pays_for_nothing_is_exit_code_5(audit):
    code, shown = audit(*LENGTH_ALONE)
    assert code == 5 and "STOP: empty" in shown and "audit.allow=[empty," in shown


def test_json_has_every_finding(audit):
    code, shown = audit(*LENGTH_ALONE, "--json")
    (found,) = json.loads(shown)
    assert (code, found["step"], found["reward"], found["verdict"]) == (5, "reinforce_audit", "arithmetic", "stop")
    empty = next(finding for finding in found["findings"] if finding["policy"] == "empty")
    assert (empty["share"], empty["verdict"], empty["earned"]["length"]) == (1.0, "stop", pytest.approx(0.3))


def test_rows_that_another_step_makes_are_audited_during_the_run(audit):
    code, shown = audit("experiment=smoke", "pipeline.reinforce.data={from: pairs}")
    assert code == 0 and "its rows come from step 'pairs'; it is audited during the run" in shown


def test_a_pipeline_without_an_audit_is_a_mistake(capsys):
    assert main(["audit", "experiment=smoke", "+pipeline.reinforce.audit=false"]) == 2
    assert "the pipeline audits nothing" in capsys.readouterr().err


def test_a_run_is_stopped_before_anything_trains(prefect_server, tmp_path, capsys):
    runs_dir = tmp_path / "runs"
    assert main(["run", *LENGTH_ALONE, f"runs_dir={runs_dir}"]) == 5
    told = capsys.readouterr()
    assert "STOP: empty" in told.err
    record = pipeline_records(runs_dir)[0]
    assert (record["state"], record["verdict"]) == ("stopped", "stop")
    states = {name: step["state"] for name, step in record["steps"].items()}
    assert states.pop("reinforce_audit") == "completed"
    assert set(states) == {"sft", "pairs", "preference", "reinforce", "evaluate"}
    assert set(states.values()) == {"skipped"}
    assert not list((runs_dir / "store").glob("sft-*"))
    assert main(["plan", *LENGTH_ALONE, f"runs_dir={runs_dir}", "--json"]) == 0
    plan = {row["step"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    assert plan["reinforce_audit"] == "cached" and plan["sft"] == "not run, reinforce_audit stops"
