"""The audit as a stage: what it leaves, what it says, and the packaged rewards on the packaged data."""

import json
import subprocess
import sys

import pytest

from conf.measuring import AuditConfig
from conf.rewards import load_rewards
from flows.compose import compose_run
from flows.workspace import Workspace
from stages.audit import audit_rows, run_audit
from stages.audit_report import report
from stages.rows import read_rows

LENGTH = {"length": {"type": "length", "max_chars": 12}}


@pytest.fixture(scope="module")
def packaged(tmp_path_factory):
    """Audits a packaged experiment as the command does."""
    runs_dir = tmp_path_factory.mktemp("audits")

    def audited(*overrides):
        workspace = Workspace(compose_run([*overrides, f"runs_dir={runs_dir}"]))
        workspace.store.prepare()
        (name,) = [name for name, step in workspace.config.steps.items() if step.stage == "audit"]
        step, settings = workspace.config.steps[name], workspace.config.settings[name]
        rows = read_rows(workspace.suites.prepared(step.data)["train"])[: settings.max_rows]
        return audit_rows(rows, workspace.config.rewards[step.reward], settings), settings

    return audited


def verdicts(found):
    return {finding.policy: finding.verdict for finding in found.findings}


def shares(found):
    return {finding.policy: finding.share for finding in found.findings}


def test_the_tool_call_recipe_earns_warnings_only_and_the_table_says_which_term_lets_them(packaged):
    found, settings = packaged("experiment=tool_calls")
    assert not found.stops and set(verdicts(found).values()) == {"fine", "warning"}
    assert 0.75 < shares(found)["one_tool"] < 0.85
    text = report(found, settings)
    line = next(line for line in text.splitlines() if line.startswith("one_tool"))
    assert "80%" in line and "warning" in line and "tool_call.valid +0.3" in line
    assert "WARNING: commonest_reference, best_constant, one_tool earn 80%" in text
    assert '{"tool": "handoff", "args": {}} = 1.2' in text


def test_without_its_task_checks_it_is_stopped(packaged):
    found, settings = packaged("experiment=tool_calls", "+reward.tool_calls.tool_call.task_checks=false")
    assert found.stops
    stopped = [name for name, verdict in verdicts(found).items() if verdict == "stop"]
    assert stopped == ["commonest_reference", "best_constant", "other_reference", "one_tool"]
    assert f"audit.allow=[{','.join(stopped)}]" in report(found, settings)
    allowed, _ = packaged(
        "experiment=tool_calls",
        "+reward.tool_calls.tool_call.task_checks=false",
        f"audit.allow=[{','.join(stopped)}]",
    )
    assert not allowed.stops and verdicts(allowed) == verdicts(found)


def test_with_points_of_zero_for_its_task_checks_it_is_stopped_too(packaged):
    points = "{expected_tool: 0.0, expected_arguments: 0.0, handoff: 0.0}"
    found, _ = packaged("experiment=tool_calls", f"+reward.tool_calls.tool_call.points={points}")
    assert found.stops


@pytest.mark.parametrize("max_rows", [50, 600])
def test_under_the_strict_numbers_no_policy_earns_half(packaged, max_rows):
    choice = "reward=[tool_calls_strict,exact_call]"
    found, _ = packaged("experiment=tool_calls", choice, f"audit.max_rows={max_rows}")
    assert not found.stops and set(verdicts(found).values()) == {"fine"}
    assert found.reference.mean == pytest.approx(1.0)
    assert max(shares(found).values()) < 0.5


def test_the_strict_numbers_are_a_ladder():
    settings = compose_run(["experiment=tool_calls", "reward=[tool_calls_strict,exact_call]"]).rewards["tool_calls"]
    from rewards.scoring import RewardSet

    row = {
        "schema": {"type": "object", "required": ["tool", "args"]},
        "expected": {"tool": "reschedule", "order_id": "12345", "date": "2026-03-14"},
    }
    ladder = [
        "no JSON",
        "{}",
        '{"tool": "refund", "args": {}}',
        '{"tool": null, "args": {}}',
        '{"tool": "handoff", "args": {}}',
        '{"tool": "reschedule", "args": {}}',
        '{"tool": "reschedule", "args": {"order_id": "12345"}}',
        '{"tool": "reschedule", "args": {"order_id": "12345", "date": "2026-03-14"}}',
    ]
    totals = [RewardSet(settings).require("", rung, None, row).total for rung in ladder]
    assert totals == sorted(totals) and len(set(totals)) == len(totals)
    assert totals[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("experiment", ["demo", "smoke", "tool_calls"])
def test_the_packaged_experiments_are_not_stopped(packaged, experiment):
    found, _ = packaged(f"experiment={experiment}")
    assert not found.stops
    warned = {name for name, verdict in verdicts(found).items() if verdict == "warning"}
    assert bool(warned) == (experiment != "demo")


def test_the_stage_stops_leaves_its_numbers_and_hands_the_model_on(context, tiny):
    ctx = context("audit", rewards=load_rewards(LENGTH))
    result = run_audit(AuditConfig(max_rows=20), ctx)
    assert (result.verdict, result.model) == ("stop", tiny)
    assert result.metrics["rows"] == 20 and result.metrics["reference"] == 1
    assert result.metrics["share.empty"] == result.metrics["largest_share"] == 1
    saved = json.loads(result.artifacts["audit"].read_text())
    assert saved["verdict"] == "stop" and saved["reference"]["mean"] == 1
    assert {finding["policy"]: finding["verdict"] for finding in saved["findings"]}["empty"] == "stop"
    assert "Stopped: " in result.report and "STOP: " in result.report
    assert context.progress[0] == ("audit", 0, 11)


def test_acknowledged_it_goes_on(context):
    stopping = ["empty", "whitespace", "empty_object", "prompt", "commonest_reference", "best_constant"]
    cfg = AuditConfig(allow=[*stopping, "all_references", "other_reference"])
    result = run_audit(cfg, context("audit", rewards=load_rewards(LENGTH)))
    assert result.verdict is None
    assert "STOP (acknowledged): empty" in result.report and "Nothing stops." in result.report


def test_the_stage_loads_no_torch():
    code = "import sys, stages.audit; print({'torch', 'transformers', 'datasets'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
