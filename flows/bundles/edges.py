"""What edges that lead out of a pipeline meant in a run: an alias or `run/latest` may mean another model by now."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conf.errors import UserError
from conf.steps import ALIASES, BASE, STAGES
from flows.store import Entry, Store

_LATEST = "run/latest"


def pipeline_then(record: Mapping[str, Any], runs_dir: Path) -> dict[str, Any]:
    """The pipeline of a run, with such edges naming the entries of the models that its steps were given.

    A step that was given nothing yet keeps its alias (see `check_aliases`).

    Raises:
        UserError: What `run/latest` meant for a step cannot be told any more.
    """
    entries: dict[str, str] | None = None  # looked for only where an edge asks
    pipeline, changed = record["config"]["pipeline"], {}
    for name, step in pipeline.items():
        told = dict(step)
        for label in ("start", "baseline", "anchor"):
            if not _moves(step.get(label)) or step.get("skip"):
                continue
            entries = entries if entries is not None else _entries(Store(runs_dir))
            told[label] = _given(runs_dir, record["steps"].get(name), label, entries) or step[label]
            if told[label].startswith(_LATEST):
                raise UserError(
                    f"{record['id']}: pipeline.{name}.{label}: what {step[label]} meant in that run cannot be told any "
                    "more; bundle its overrides, with run/<id> in its place"
                )
        changed[name] = told
    return changed


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


def _moves(edge: str | None) -> bool:
    return edge in ALIASES or (edge or "").split("/")[:2] == _LATEST.split("/")


def _entries(store: Store) -> dict[str, str]:
    """The edges that name what trained entries left, by the identity of the model."""
    entries = [entry for stage in STAGES if STAGES[stage].trains for entry in store.find(f"{stage}-")]
    results = {entry.id: entry.result() for entry in entries}
    return {result.model.identity: f"run/{id_}" for id_, result in results.items() if result is not None}


def _given(runs_dir: Path, step: Mapping[str, Any] | None, label: str, entries: Mapping[str, str]) -> str | None:
    """What a finished step was given, as an edge; None where that is not known."""
    entry = Entry(runs_dir / "store" / step["store"]) if step and step["store"] else None
    result = entry.result() if entry else None
    if entry is None or result is None:
        return None
    identity = (entry.saved("inputs.json") or {}).get("models", {}).get(label)
    return {**entries, result.model.base.identity: BASE}.get(identity)


def _version(meaning: str) -> str:
    """The version that an alias points to, also where that was the start itself (see `Aliases.before`)."""
    found = re.search(r"\((.*) is the start itself\)$", meaning)
    return found[1] if found else meaning
