"""What `champion`, `previous` and `anchor` mean in one run: asked once, so that it stays the same until the run ends.

MLflow is imported when a pipeline names one of them, and not before.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from conf.errors import UserError
from conf.loader import load
from conf.registry import REGISTERED, registered_name
from conf.schema import ModelConfig, RatchetConfig
from conf.steps import ALIASES, BASE, named_edge
from flows.store import Entry, Store
from stages.contract import Adapter, ModelRef
from stages.handover import read_model
from stages.identity import resolve_model

if TYPE_CHECKING:
    from flows.registry.registered_model import Registry
    from flows.registry.versions import Version

T = TypeVar("T")


class Aliases:
    """The registry as one run sees it.

    Args:
        sections: The run's configuration.
        runs_dir: Where its store and the embedded database live.
    """

    def __init__(self, sections: RatchetConfig, runs_dir: Path) -> None:
        self._sections, self._runs_dir = sections, runs_dir
        self._asked: dict[str, str] = {}

    @cached_property
    def _found(self) -> "Mapping[str, Version]":
        return self._ask(lambda: self._registry().aliases())

    def version(self, alias: str) -> "Version | None":
        """The version an alias points to; None while there is none.

        Raises:
            UserError: MLflow cannot be asked.
        """
        found = self._found.get(alias)
        registry = self._sections.registry
        instead = f"{registry.fallback} (registry.fallback; there is none in {registry.name} yet)"
        self._asked[alias] = str(found) if found else instead
        return found

    def before(self, alias: str, version: "Version") -> "Version | None":
        """The version that an alias pointed to before this one, and means now; None for the first.

        Raises:
            UserError: MLflow cannot be asked.
        """
        number = None if alias == "anchor" else version.replaces
        found = self._ask(lambda: self._registry().version(number)) if number else None
        self._asked[alias] = f"{found or self._sections.registry.fallback} ({version} is the start itself)"
        return found

    @cached_property
    def base_version(self) -> "Version | None":
        """The version that is the run's base model; None when another model is, or stands in.

        Raises:
            UserError: MLflow cannot be asked, or there is no such version and no fallback.
        """
        model = self._sections.model
        if not model.id.startswith(REGISTERED):
            return None
        name, where = registered_name(model.id)
        found = self._ask(lambda: self._registry(name).named(where))
        if found is None and model.fallback is None:
            raise UserError(f"model.id: there is no {model.id} yet; model.fallback names the base model until there is")
        instead = f"{model.fallback} (model.fallback; there is none in {name} yet)"
        self._asked[model.id] = str(found) if found else instead
        return found

    @cached_property
    def base_config(self) -> ModelConfig:
        """The model section with the registered model it may name as a directory, or with its fallback."""
        model, version = self._sections.model, self.base_version
        if version is not None:
            return self._as_base(version, model)
        return replace(model, id=model.fallback or model.id, fallback=None)

    @property
    def original_tag(self) -> dict[str, Any] | None:
        """What is known of the base model that the run's registered base was once trained from."""
        return _tag(self.base_version, "ratchet.original") or None

    def original(self, dtype: str) -> ModelRef | None:
        """That model, where this machine has it."""
        saved = self.original_tag
        if not saved:
            return None
        try:
            ref = resolve_model(load(ModelConfig, saved["config"], "original"), dtype)
        except UserError:
            return None
        return ref if ref.sha256 == saved["sha256"] else None

    def model(self, version: "Version", base: ModelRef) -> ModelRef:
        """A version as a model of this run: base and adapters where the store has them, else its files as a base.

        Raises:
            UserError: Its files are gone.
        """
        if self.base_version is not None and _same(self.base_version, version):
            return base
        return self._from_store(version, base) or resolve_model(self._as_base(version, base.config), base.dtype)

    @property
    def asked(self) -> dict[str, str]:
        """What was asked for so far, and what it means."""
        return dict(self._asked)

    def meanings(self, edges: Iterable[str]) -> dict[str, str]:
        """What those of a step's edges mean that MLflow has to be asked for.

        Raises:
            UserError: It cannot be asked.
        """
        edges = [named_edge(edge)[1] for edge in edges]
        for edge in edges:
            if edge in ALIASES:
                self.version(edge)
        if self._sections.model.id.startswith(REGISTERED) and BASE in edges:
            assert self.base_config
        names = [self._sections.model.id if edge == BASE else edge for edge in edges]
        return {name: self._asked[name] for name in names if name in self._asked}

    def _from_store(self, version: "Version", base: ModelRef) -> ModelRef | None:
        """Base and adapters, where the base is the run's and every adapter is in its store, whole."""
        saved = _tag(version, "ratchet.model")
        if not saved or saved["sha256"] != base.sha256:
            return None
        model = read_model(saved, Store(self._runs_dir).root)
        if model.identity != version.tags.get("ratchet.identity") or not all(map(_is_whole, model.adapters)):
            return None
        return replace(model, config=base.config, revision=base.revision)

    def _as_base(self, version: "Version", like: ModelConfig) -> ModelConfig:
        """The files of a version as a base model: they bring their chat template and stop tokens along."""
        folder = self._ask(lambda: self._registry(version.name).directory(version))
        saved = _tag(version, "ratchet.model").get("config", {})
        arguments = like.chat_template_kwargs or saved.get("chat_template_kwargs", {})
        return ModelConfig(id=str(folder), trust_remote_code=like.trust_remote_code, chat_template_kwargs=arguments)

    def _registry(self, name: str | None = None) -> "Registry":
        from flows.mlflow_connection import tracking_uri
        from flows.registry.registered_model import Registry

        return Registry(tracking_uri(self._sections.tracking, self._runs_dir), name or self._sections.registry.name)

    def _ask(self, question: Callable[[], T]) -> T:
        from flows.mlflow_connection import complaint, first_line, requests_within, tracking_uri

        try:
            with requests_within(10):
                return question()
        except UserError:
            raise
        except Exception as error:  # a database's driver raises what it likes
            self._registry().forget()
            uri = tracking_uri(self._sections.tracking, self._runs_dir)
            text = f"cannot ask MLflow at {uri} what has shipped ({first_line(error)}); name a run (run/<id>) or base"
            raise complaint(error, f"registry: {text} instead, or try again when it answers") from error


def _tag(version: "Version | None", name: str) -> dict[str, Any]:
    """What a tag says as JSON; nothing for a version that was not registered by us."""
    try:
        value = json.loads(version.tags[name]) if version else None
    except (LookupError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _same(one: "Version", other: "Version") -> bool:
    return (one.name, one.number) == (other.name, other.number)


def _is_whole(adapter: Adapter) -> bool:
    result = Entry(adapter.path.parent).result()
    return result is not None and result.model.adapters[-1:] == (adapter,)
