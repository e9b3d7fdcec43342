"""Edges that lead out of a pipeline, as another machine understands them: entries of the store that travel along.

An alias, `run/latest` and the name of a run mean nothing there, and may mean another model here by now. What was shown
in the scores is kept as the model's name (`champion:run/<id>`): an evaluation's fingerprint has it.
"""

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from conf.errors import UserError
from conf.steps import ALIASES, BASE, RUN, STAGES, leads_out, named_edge
from flows.store import Entry, Store
from flows.workspace import Workspace
from stages.contract import ModelRef, StageResult

_LATEST = f"{RUN}latest"


def pipeline_then(record: Mapping[str, Any], runs_dir: Path) -> dict[str, Any]:
    """The pipeline of a run, with edges that may mean another model by now naming what its steps were given.

    A step that was given nothing yet keeps its alias (see `check_aliases`).

    Raises:
        UserError: What `run/latest` meant for a step cannot be told any more.
    """
    then = _Then(record, runs_dir)
    return {
        name: step if step.get("skip") else _with_edges(name, step, then.edge)
        for name, step in record["config"]["pipeline"].items()
    }


def check_aliases(record: Mapping[str, Any], asked: Mapping[str, str]) -> None:
    """See that the aliases that are left mean what they meant in the run.

    Args:
        record: Of the run.
        asked: Aliases and what they mean now.

    Raises:
        UserError: One means another model.
    """
    for alias, meaning in asked.items():
        then, now = _version(record.get("aliases", {}).get(alias, meaning)), _version(meaning)
        if then != now:
            raise UserError(
                f"{record['id']}: {alias} was {then} in that run, and is {now} now; bundle its overrides, with "
                "run/<id> or base in its place"
            )


class PortableEdges:
    """The edges of a pipeline for another machine.

    Args:
        workspace: The pipeline on this machine.
        results: The results that are there, by step.

    Attributes:
        entries: Entries of the store that the edges name, those of earlier adapters included.
    """

    def __init__(self, workspace: Workspace, results: Mapping[str, StageResult]) -> None:
        self._workspace, self._results = workspace, results
        self.entries: list[Entry] = []

    def step(self, name: str, step: Mapping[str, Any]) -> dict[str, Any]:
        """A step as declared, with edges that lead out of the pipeline naming an entry that travels along.

        Raises:
            UserError: There is no such model, or it has another base.
        """
        return _with_edges(name, step, self._edge)

    def _edge(self, step: str, key: str, edge: str) -> str:
        if edge == BASE or not leads_out(edge):
            return edge
        models, declared = self._workspace.models, self._workspace.config.steps.get(step)  # None for one left out
        known = declared is not None and all(need in self._results for need in declared.needs())
        compared = known and key in ("baseline", "anchor")
        model = models.of_step(step, self._results)[key] if compared else models.model(edge, {})
        return _renamed(key, edge, self._entry(f"pipeline.{step}.{key}: {edge}", model))

    def _entry(self, what: str, model: ModelRef) -> str:
        """A model as an edge: the base, or the entry that left it."""
        if model.sha256 != self._workspace.models.base.sha256:
            raise UserError(f"{what} has another base, and cannot travel; compare with a run of this one, or with base")
        if not model.adapters:
            return BASE
        entries = [Entry(adapter.path.parent) for adapter in model.adapters]
        self.entries += [entry for entry in entries if entry not in self.entries]
        return f"{RUN}{entries[-1].id}"


class _Then:
    """What edges meant in a run."""

    def __init__(self, record: Mapping[str, Any], runs_dir: Path) -> None:
        self._record, self._store = record, Store(runs_dir)

    def edge(self, step: str, key: str, edge: str) -> str:
        """An edge, naming what the step was given, where it may mean another model by now."""
        name, what = named_edge(edge)
        latest = what.split("/")[:2] == _LATEST.split("/")
        if what not in ALIASES and not latest:
            return edge
        given = self._given(step, f"models.{name}" if key == "models" else key)
        if given is None and latest:
            raise UserError(
                f"{self._record['id']}: pipeline.{step}.{key}: what {edge} meant in that run cannot be told any more; "
                "bundle its overrides, with run/<id> in its place"
            )
        return edge if given is None else _renamed(key, edge, given)

    def _given(self, step: str, label: str) -> str | None:
        """What a finished step was given under a label, as an edge; None where that is not known."""
        done = self._record["steps"].get(step)
        entry = Entry(self._store.root / done["store"]) if done and done["store"] else None
        result = entry.result() if entry else None
        if entry is None or result is None:
            return None
        identity = (entry.saved("inputs.json") or {}).get("models", {}).get(label)
        return {**self._entries, result.model.base.identity: BASE}.get(identity)

    @cached_property
    def _entries(self) -> dict[str, str]:
        """The edges that name what trained entries left, by the identity of the model; looked for when an edge asks."""
        entries = [entry for stage in STAGES if STAGES[stage].trains for entry in self._store.find(f"{stage}-")]
        results = {entry.id: entry.result() for entry in entries}
        return {result.model.identity: f"{RUN}{id_}" for id_, result in results.items() if result is not None}


def _with_edges(name: str, step: Mapping[str, Any], changed: Callable[[str, str, str], str]) -> dict[str, Any]:
    """A step with each of its edges to a model changed, given the names of step and key, and the edge."""
    told = {key: changed(name, key, step[key]) for key in ("start", "baseline", "anchor") if step.get(key)}
    models = {"models": [changed(name, "models", edge) for edge in step["models"]]} if step.get("models") else {}
    return {**step, **told, **models}


def _renamed(key: str, edge: str, what: str) -> str:
    """An edge that names a model otherwise, and calls it the same where the scores show what it is called."""
    name = named_edge(edge)[0]
    return what if key in ("baseline", "anchor") or name == what else f"{name}:{what}"


def _version(meaning: str) -> str:
    """The version that an alias points to, also where that was the start itself (see `Aliases.before`)."""
    found = re.search(r"\((.*) is the start itself\)$", meaning)
    return found[1] if found else meaning
