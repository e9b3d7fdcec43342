"""What a person may do with the registry: promote a model without a gate's verdict, and take a promotion back.

Both are written down with who did it, when and why, before the alias moves.
"""

import getpass
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conf.errors import UserError
from conf.schema import TrackingConfig
from flows.mlflow_connection import first_line, tracking_uri
from flows.references import FoundRun
from flows.registry.lineage import gate_tags, gates_of, lineage_tags, reasons, record_tags
from flows.registry.registered_model import Registry
from flows.registry.registration import Candidate, register
from flows.registry.shipping import MLFLOW_ERRORS
from flows.registry.versions import IDENTITY, Version
from flows.store import Entry
from flows.tracking import Tracker
from stages.contract import Hardware


def promote(
    found: FoundRun,
    runs_dir: Path,
    tracking: TrackingConfig,
    name: str,
    *,
    hardware: Hardware,
    reason: str,
    anchor: bool = False,
) -> dict[str, Any]:
    """Make the model of a run the champion, whatever its gate said.

    Args:
        found: The run.
        runs_dir: Where its store is.
        tracking: Where MLflow is.
        name: Of the registered model.
        hardware: Where to fold.
        reason: Why, in words.
        anchor: Whether it is the anchor from now on, too.

    Returns:
        What was done, for a program, and as `text`.

    Raises:
        UserError: MLflow cannot be used.
    """
    model = found.model()
    tracker = Tracker(tracking, runs_dir, _say)
    registry = Registry(tracker.uri, name)
    gate = next(iter(gates_of(model, runs_dir)), None)
    said = _verdict(gate)
    device = replace(hardware, dtype=model.dtype)
    with _holding(registry):
        made = registry.tagged(IDENTITY, model.identity)
        before = registry.champion()
        new = _candidate(found, gate, runs_dir)
        version = made[0] if made else register(registry, tracker, new, device, runs_dir)
        _write_down(registry, version, "promoted", f"{reason} ({said})")
        registry.promote(version)
        if anchor:
            registry.pin_anchor(version)
    after = f", after version {before.number}" if before and before.number != version.number else ""
    return {
        "name": name,
        "version": version.number,
        "previous": before.number if before else None,
        "anchor": anchor,
        "gate": gate.saved("result.json")["verdict"] if gate else None,
        "text": f"{version} is the champion{after}; {said}" + ("; it is the anchor, too" if anchor else ""),
    }


def rollback(runs_dir: Path, tracking: TrackingConfig, name: str, reason: str) -> dict[str, Any]:
    """Make the previous champion the champion again.

    Returns:
        What was done, for a program, and as `text`.

    Raises:
        UserError: There is no previous champion, or MLflow cannot be used.
    """
    registry = Registry(tracking_uri(tracking, runs_dir), name)
    with _clear_errors(registry):
        registry.require_previous()  # before anything is made, a lock included
    with _holding(registry):
        withdrawn, _ = registry.require_previous()
        _write_down(registry, withdrawn, "rolled back", reason)
        champion = registry.rollback()
        anchor = registry.aliases()["anchor"]
    still = f"; the anchor still is version {anchor.number}" if anchor.number == withdrawn.number else ""
    return {
        "name": name,
        "version": champion.number,
        "withdrawn": withdrawn.number,
        "text": f"{champion} is the champion again, version {withdrawn.number} is withdrawn{still}",
    }


def _candidate(found: FoundRun, gate: Entry | None, runs_dir: Path) -> Candidate:
    model, record = found.model(), found.record
    tags = {**lineage_tags(model, runs_dir, (record or {}).get("original")), **record_tags(record)}
    words = "\n".join(f"- {line}" for line in reasons(gate)) if gate else ""
    return Candidate(
        id=found.entry.id,
        model=model,
        tags={**tags, **(gate_tags(gate) if gate else {})},
        description=f"The model of {found.name}, promoted by a person; {_verdict(gate)}.\n{words}".strip(),
        parent=(record or {}).get("mlflow_run"),
    )


def _verdict(gate: Entry | None) -> str:
    return f"its gate ({gate.id}) said {gate.saved('result.json')['verdict']}" if gate else "no gate has seen it"


def _write_down(registry: Registry, version: Version, what: str, reason: str) -> None:
    """In the description, which keeps all that was ever done, and as tags, which say what was done last."""
    who, when = _who(), datetime.now(UTC).isoformat(timespec="seconds")
    registry.note(version, f"{when}: {what} by {who}: {reason}")
    for key, value in {"what": what, "who": who, "when": when, "why": reason}.items():
        registry.tag(version, f"ratchet.person.{key}", value)


def _who() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container without a list of users
        name = "somebody"
    return f"{name}@{socket.gethostname()}"


@contextmanager
def _clear_errors(registry: Registry) -> Iterator[None]:
    """Tell in one line what is wrong with MLflow.

    Raises:
        UserError: It cannot be used.
    """
    try:
        yield
    except MLFLOW_ERRORS as error:
        registry.forget()
        raise UserError(f"cannot use MLflow at {registry.uri} ({first_line(error)})") from error


@contextmanager
def _holding(registry: Registry) -> Iterator[None]:
    """Hold the registry against others, and wait for them."""
    told: list[str] = []

    def on_wait() -> None:
        if not told:
            told.append(f"waiting for another process, which ships as {registry.name}")
            _say(told[0])

    with _clear_errors(registry), registry.locked(on_wait):
        yield


def _say(line: str) -> None:
    print(f"ratchet: {line}", file=sys.stderr)
