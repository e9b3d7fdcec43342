"""`ratchet plan`: the steps of a pipeline, what is cached, what would run and why, without loading any model."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from flows.changes import changes
from flows.compose import compose_run
from flows.memory_plan import memory_lines, memory_plan
from flows.references import pipeline_records
from flows.store import Entry
from flows.workspace import StepInputs, Workspace
from stages.contract import StageResult
from stages.table import table


def main(arguments: argparse.Namespace) -> int:
    """Print the plan; returns the exit code."""
    workspace = Workspace(compose_run(arguments.overrides, arguments.config_dir))
    rows, results = plan_results(workspace)
    estimates = memory_plan(workspace, results)
    if arguments.json:
        memory = {name: each.as_json() for name, each in estimates.items()}
        print(json.dumps([{**row, "memory": memory.get(row["step"])} for row in rows]))
    else:
        print("\n".join([table([_shown(row) for row in rows]), *_meanings(rows), *memory_lines(estimates, workspace)]))
    return 0


def plan_rows(workspace: Workspace) -> list[dict[str, Any]]:
    """One row per step, in the order in which they would run; `changes` says why one has to."""
    return plan_results(workspace)[0]


def plan_results(workspace: Workspace) -> tuple[list[dict[str, Any]], dict[str, StageResult]]:
    """The rows of the plan, and by step the results that are there already."""
    results: dict[str, StageResult] = {}
    pipeline = workspace.config.sections.name
    records = [record for record in pipeline_records(workspace.runs_dir) if record.get("name") == pipeline]
    rows = []
    for name, step in workspace.config.steps.items():
        state, store, why = _state(workspace, name, results, records)
        data = (
            f"from {step.data_step}"
            if step.data_step
            else str(step.data or ", ".join(workspace.config.suite_names(step)))
        )
        rows.append(
            {
                "step": name,
                "stage": step.stage,
                "start": step.start,
                "data": data,
                "reward": step.reward or "",
                "store": store,
                "state": state,
                "changes": why,
                "aliases": workspace.models.aliases.meanings(step.model_edges),
            }
        )
    return rows, results


def _meanings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the aliases in a plan point to, a line each."""
    found = {alias: meaning for row in rows for alias, meaning in row["aliases"].items()}
    return [f"{alias}: {meaning}" for alias, meaning in found.items()]


def _state(
    workspace: Workspace, name: str, results: dict[str, StageResult], records: Sequence[Mapping[str, Any]]
) -> tuple[str, str, list[str]]:
    """A step's state, its place in the store if that is known, and why it has to run."""
    if gate := workspace.held_by(name, results):
        return f"not run, {gate} holds", "", []
    if not workspace.is_due(name, results):
        return f"run, if {', '.join(workspace.askers(name))} asks", "", []
    stops = [other for other, result in results.items() if result.verdict == "stop"]
    if stops:
        return f"not run, {stops[0]} stops", "", []
    needs = [need for need in workspace.config.steps[name].needs() if workspace.is_due(need, results)]
    waiting = [need for need in needs if need not in results]
    if waiting:
        return f"run, after {', '.join(waiting)}", "", []
    inputs = workspace.inputs(name, results)
    entry = workspace.entry(inputs)
    result = entry.result()
    if result is None:
        return "run", entry.id, _why(entry, inputs, records)
    workspace.finish(name, result, results)
    return "cached", entry.id, []


def _why(entry: Entry, inputs: StepInputs, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why a step has to run: its entry is not whole, or what it was given has changed since the pipeline last ran."""
    steps = [record["steps"].get(inputs.name, {}) for record in reversed(records)]
    if entry.path.is_dir():
        ended = next((step.get("state") for step in steps if step.get("store") == entry.id), None)
        return [entry.damage() or f"{'failed' if ended == 'failed' else 'interrupted'}, continues"]
    made = [step.get("store") for step in steps]
    if entry.id in made[:1]:
        return ["deleted"]
    entries = [Entry(entry.path.with_name(store)) for store in made if store]
    before = next((saved for entry in entries if (saved := entry.saved("inputs.json")) is not None), None)
    if before is None:
        return ["never made"]
    return changes(before, inputs.parts, {"start": inputs.step.start, "baseline": inputs.step.baseline})


_SHOWN = 3
"""Changes that a row of the table has room for."""


def _shown(row: Mapping[str, Any]) -> dict[str, str]:
    """A row as the table has it: the changes stand with the state."""
    why = list(row["changes"])
    if len(why) > _SHOWN:
        why[_SHOWN:] = [f"and {len(why) - _SHOWN} more"]
    state = f"{row['state']}: {', '.join(why)}" if why else row["state"]
    return {name: value for name, value in row.items() if name not in ("changes", "aliases")} | {"state": state}
