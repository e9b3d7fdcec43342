"""`ratchet plan`: the steps of a pipeline, what is cached and what would run, without loading any model."""

import argparse
import json

from flows.compose import compose_run
from flows.workspace import Workspace
from stages.contract import StageResult
from stages.table import table


def main(arguments: argparse.Namespace) -> int:
    """Print the plan; returns the exit code."""
    rows = plan_rows(Workspace(compose_run(arguments.overrides, arguments.config_dir)))
    print(json.dumps(rows) if arguments.json else table(rows))
    return 0


def plan_rows(workspace: Workspace) -> list[dict[str, str]]:
    """One row per step, in the order in which they would run."""
    results: dict[str, StageResult] = {}
    rows = []
    for name, step in workspace.config.steps.items():
        state, store = _state(workspace, name, results)
        data = f"from {step.data_step}" if step.data_step else str(step.data or ", ".join(workspace.suite_names(step)))
        rows.append(
            {
                "step": name,
                "stage": step.stage,
                "start": step.start,
                "data": data,
                "reward": step.reward or "",
                "state": state,
                "store": store,
            }
        )
    return rows


def _state(workspace: Workspace, name: str, results: dict[str, StageResult]) -> tuple[str, str]:
    if not workspace.is_due(name, results):
        return f"run, if {', '.join(workspace.askers(name))} asks", ""
    stops = [other for other, result in results.items() if result.verdict == "stop"]
    if stops:
        return f"not run, {stops[0]} stops", ""
    needs = [need for need in workspace.config.steps[name].needs() if workspace.is_due(need, results)]
    waiting = [need for need in needs if need not in results]
    if waiting:
        return f"run, after {', '.join(waiting)}", ""
    entry = workspace.entry(workspace.inputs(name, results))
    result = entry.result()
    if result is None:
        return "run", entry.id
    workspace.finish(name, result, results)
    return "cached", entry.id
