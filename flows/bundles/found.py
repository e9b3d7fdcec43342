"""The results in an unpacked bundle, checked: every one is whole, is what its name says, and follows from its inputs.

They come from another machine, and will count as if they had been made here: what contradicts itself, the other results
or what is here already is refused, all of it, before anything is taken.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.steps import STAGES
from flows.bundles.places import RUNS
from flows.fingerprint import LIBRARIES, code_digest, digest, library_versions
from flows.store import FORMAT, Entry, Store
from stages.contract import ModelRef, StageResult

_ID = re.compile(rf"({'|'.join(STAGES)})-([0-9a-f]{{16}})")
_RUN = re.compile(r"\w[\w.-]*", re.ASCII)
_STEP_KEYS = {"stage", "start", "state", "store", "seconds", "metrics", "report", "error"}
_RECORD_KEYS = {"id", "name", "state", "verdict", "started", "steps", "config", "imported"}
_TAKEN_BY_OTHERS = ("train", "select", "gate")
"""Artifacts that later steps are computed from."""


class Refused(Exception):
    """Why a bundle is not imported."""


class FoundResults:
    """The results in an unpacked bundle, all of them checked.

    Raises:
        Refused: What is wrong.
    """

    def __init__(self, draft: Path, manifest: Mapping[str, Any], store: Store) -> None:
        self._runs, self._manifest, self._store = draft / RUNS, manifest, store
        if manifest.get("store_format") != FORMAT:
            raise Refused(f"its store has format {manifest.get('store_format')!r}, and this version has {FORMAT}")
        ids = manifest.get("entries")
        if not isinstance(ids, list) or not all(isinstance(id_, str) and _ID.fullmatch(id_) for id_ in ids):
            raise Refused("its manifest names no entries of a store")
        ratchet = manifest.get("ratchet")
        software = manifest.get("libraries"), ratchet.get("code") if isinstance(ratchet, dict) else None
        if not all(isinstance(part, dict) for part in software):
            raise Refused("its manifest does not say with what software it was made")
        self._results = {id_: self._result(id_) for id_ in ids}
        for id_ in ids:
            self._check_chain(id_)
            self._check_against_ours(id_)
        self.record = self._read_record()
        self._check_members(ids)

    @property
    def entries(self) -> list[Entry]:
        """Those first on which others stand."""
        return [Entry(self._place(id_)) for id_ in sorted(self._results, key=self._depth)]

    def notices(self) -> list[str]:
        """Where the software is another than here, and results would be computed again."""
        there, here = self._manifest["libraries"], library_versions(LIBRARIES)
        others = [name for name in here if there.get(name) != here[name]]
        lines = [f"made with {name} {there.get(name)}, here is {here[name]}" for name in others]
        code = self._manifest["ratchet"]["code"]
        stages = sorted({id_.rpartition("-")[0] for id_ in self._results})
        lines += [
            f"made with other code of {name}" for name in stages if code.get(name) != code_digest(f"stages.{name}")
        ]
        return [f"{line}: what was computed there is kept, but a run would compute it again" for line in lines]

    def _place(self, id_: str) -> Path:
        return self._runs / "store" / id_

    def _depth(self, id_: str) -> tuple[int, bool, str]:
        model = self._results[id_].model
        return len(model.adapters), _own(id_, model) == model, id_

    def _result(self, id_: str) -> StageResult:
        """An entry's result, if the entry is whole and is what its name says."""
        entry = Entry(self._place(id_))
        result, inputs, saved = entry.result(), entry.saved("inputs.json"), entry.saved("result.json") or {}
        if result is None or inputs is None:
            raise Refused(f"{id_} is not whole: {entry.damage() or 'inputs.json is missing'}")
        stage, _, fingerprint = id_.rpartition("-")
        if digest(inputs) != fingerprint or stage not in inputs:
            raise Refused(f"{id_} is foreign: its fingerprint does not follow from its inputs.json")
        there = {str(file.relative_to(entry.path)) for file in entry.path.rglob("*") if file.is_file()}
        if others := there ^ {*saved["files"], "result.json"}:
            raise Refused(f"{id_} has a file that it does not vouch for: {min(others)}")
        if "inputs.json" not in there or not all(_lies_in(there, path) for path in saved["artifacts"].values()):
            raise Refused(f"{id_} does not vouch for all that it names")
        models = inputs.get("models")
        if not isinstance(models, dict) or models.get("start") != _own(id_, result.model).identity:
            raise Refused(f"{id_} is foreign: its model does not follow from the one in its inputs.json")
        return result

    def _check_chain(self, id_: str) -> None:
        """Every adapter of a model belongs to an entry that is in the bundle or here."""
        for adapter in self._results[id_].model.adapters:
            owner = adapter.path.parent.name
            known = self._results.get(owner) or Entry(self._store.root / owner).result()
            last = known.model.adapters[-1:] if known else ()
            if [replace(each, path=self._place(owner) / each.path.name) for each in last] != [adapter]:
                raise Refused(f"{id_} stands on the adapter of {owner}, which is neither in the bundle nor here")

    def _check_against_ours(self, id_: str) -> None:
        """What is here already has come out alike; otherwise what follows from it there is nothing here."""
        ours, theirs = Entry(self._store.root / id_), Entry(self._place(id_))
        here = ours.result()
        if here is not None and _outcome(ours, here) != _outcome(theirs, self._results[id_]):
            raise Refused(f"{id_} was made here, too, and came out otherwise; remove {ours.path} to take theirs")

    def _read_record(self) -> dict[str, Any]:
        paths = list((self._runs / "pipelines").glob("*/*"))
        record: dict[str, Any] | None = Entry(paths[0].parent).saved("pipeline.json") if len(paths) == 1 else None
        if record is None or not record.keys() >= _RECORD_KEYS or record["id"] != paths[0].parent.name:
            raise Refused("it has no record of a run")
        steps = record["steps"]
        whole = isinstance(steps, dict) and all(isinstance(s, dict) and s.keys() >= _STEP_KEYS for s in steps.values())
        from_somewhere = isinstance(record["imported"], dict) and "host" in record["imported"]
        stored = whole and all(self._is_known(step["store"]) for step in steps.values())
        if not stored or not from_somewhere or not _RUN.fullmatch(record["id"]) or record["state"] == "running":
            raise Refused("its record of a run is not one")
        return record

    def _is_known(self, id_: Any) -> bool:
        """Whether a step's place in the store is none, or an entry that is in the bundle or here."""
        here = isinstance(id_, str) and _ID.fullmatch(id_) and (self._store.root / id_).is_dir()
        return id_ is None or (isinstance(id_, str) and id_ in self._results) or bool(here)

    def _check_members(self, ids: Iterable[str]) -> None:
        """Nothing lies among the runs that belongs to no entry."""
        known = tuple(f"{RUNS}/{place}" for place in (*(f"store/{id_}/" for id_ in ids), "store/data-", "pipelines/"))
        for name in self._manifest["members"]:
            if name.startswith(f"{RUNS}/") and name != f"{RUNS}/store/FORMAT" and not name.startswith(known):
                raise Refused(f"{name} belongs to no entry that its manifest names")


def _lies_in(files: Iterable[str], path: Any) -> bool:
    """Whether a path is one of an entry's files, or a folder of some of them."""
    return any(file == path or file.startswith(f"{path}/") for file in files)


def _own(id_: str, model: ModelRef) -> ModelRef:
    """What an entry started from: its model, without the adapter that it left itself."""
    ours = bool(model.adapters) and model.adapters[-1].path.parent.name == id_
    return replace(model, adapters=model.adapters[:-1]) if ours else model


def _outcome(entry: Entry, result: StageResult) -> Any:
    """What other steps are computed from; times and paths may differ."""
    files: Mapping[str, str] = (entry.saved("result.json") or {})["files"]
    taken = {name: result.artifacts[name] for name in _TAKEN_BY_OTHERS if name in result.artifacts}
    rows = {name: files.get(str(path.relative_to(entry.path))) for name, path in taken.items()}
    return [result.model.identity, result.verdict, rows]
