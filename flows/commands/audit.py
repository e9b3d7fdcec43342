"""`ratchet audit`: what the rewards of a pipeline pay to policies that do not do the job; needs no model."""

import argparse
import json
from typing import Any

from conf.errors import UserError
from flows.compose import compose_run
from flows.outcome import EXIT_CODES
from flows.workspace import Workspace
from stages.audit import audit_rows, plain
from stages.audit_report import report
from stages.rows import read_rows


def main(arguments: argparse.Namespace) -> int:
    """Do every audit step of the pipeline; returns the exit code, 5 when one of them stops.

    Raises:
        UserError: There is none, a source of rows cannot be used, or a reward fails.
    """
    workspace = Workspace(compose_run(arguments.overrides, arguments.config_dir))
    names = [name for name, step in workspace.config.steps.items() if step.stage == "audit"]
    if not names:
        raise UserError("the pipeline audits nothing: it has no reinforce step, or its reinforce steps say audit: off")
    workspace.store.prepare()
    results = [_audited(workspace, name, arguments.json) for name in names]
    if arguments.json:
        print(json.dumps(results, ensure_ascii=False))
    stops = any(result["verdict"] == "stop" for result in results)
    return EXIT_CODES["stop" if stops else None]


def _audited(workspace: Workspace, name: str, quiet: bool) -> dict[str, Any]:
    """One audit step as plain JSON; printed for a person unless `quiet`."""
    step, settings = workspace.config.steps[name], workspace.config.settings[name]
    title = {"step": name, "data": step.data, "reward": step.reward}
    if step.data_step:
        text = f"its rows come from step {step.data_step!r}; it is audited during the run"
        result: dict[str, Any] = {**title, "verdict": None, "note": text}
    else:
        rows = read_rows(workspace.suites.prepared(str(step.data))["train"], settings.max_rows)
        found = audit_rows(rows, workspace.config.rewards[str(step.reward)], settings, workspace.base_dir)
        text, result = report(found, settings), {**title, **plain(found)}
    if not quiet:
        count = "" if step.data_step else f" on {result['rows']} training rows of {step.data}"
        print(f"{name}: reward {step.reward}{count}\n\n{text}\n")
    return result
