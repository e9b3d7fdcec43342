"""What made a model, in a form that goes with it into the registry: its parts, and the hashes of all that went in."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conf.loader import dump
from flows.fingerprint import code_digest, digest
from flows.store import Entry, Store
from stages.cache import file_sha256
from stages.contract import ModelRef
from stages.handover import write_model


def lineage_tags(model: ModelRef, runs_dir: Path, original: Mapping[str, Any] | None) -> dict[str, str]:
    """Tags for a model of the store: identity, base and adapters, and what they were made from.

    Args:
        model: The model.
        runs_dir: Where its store is.
        original: What its base was once trained from, where that is known (`ratchet.original` of its version).
    """
    entries = [Entry(adapter.path.parent) for adapter in model.adapters]
    receipts = {entry.id: entry.path / "receipt.json" for entry in entries}
    inputs = {entry.id: entry.saved("inputs.json") or {} for entry in entries}
    base = {"config": dump(model.config), "revision": model.revision, "sha256": model.sha256}
    return {
        "ratchet.identity": model.identity,
        "ratchet.model": json.dumps(write_model(model, Store(runs_dir).root)),
        "ratchet.original": json.dumps(original or base),
        "ratchet.store": json.dumps([entry.id for entry in entries]),
        "ratchet.receipts": json.dumps({name: file_sha256(path) for name, path in receipts.items() if path.is_file()}),
        "ratchet.data": json.dumps({name: digest(values.get("data")) for name, values in inputs.items()}),
    }


def record_tags(record: Mapping[str, Any] | None) -> dict[str, str]:
    """Tags for the pipeline run that a model comes from; none where it is not known."""
    if record is None:
        return {}
    return {
        "ratchet.pipeline": record["id"],
        "ratchet.git_commit": str(record.get("git_commit")),
        "ratchet.config": digest(record.get("config")),
    }


def gate_tags(entry: Entry) -> dict[str, str]:
    """Tags for what a gate decided: its verdict, its scores, the suites they are of, and the code that decided."""
    saved, inputs = entry.saved("result.json") or {}, entry.saved("inputs.json") or {}
    return {
        "ratchet.gate": entry.id,
        "ratchet.gate_version": code_digest("stages.decision"),
        "ratchet.verdict": str(saved.get("verdict")),
        "ratchet.scores": json.dumps(saved.get("metrics", {})),
        "ratchet.suites": json.dumps({name: digest(value) for name, value in inputs.get("suite", {}).items()}),
    }


def gates_of(model: ModelRef, runs_dir: Path) -> list[Entry]:
    """The gates of a store that have decided about a model, the latest first."""
    store = Store(runs_dir)
    found = [
        entry
        for entry in store.find("gate-")
        if (saved := entry.saved("result.json")) and saved["model"] == _as_saved(model, store.root)
    ]
    return sorted(found, key=lambda entry: -(entry.path / "result.json").stat().st_mtime)


def reasons(entry: Entry) -> list[str]:
    """Why a gate decided as it did, in words."""
    return list((entry.saved("decision.json") or {}).get("reasons", ()))


def _as_saved(model: ModelRef, root: Path) -> Any:
    return json.loads(json.dumps(write_model(model, root)))
