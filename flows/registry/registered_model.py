"""A model in MLflow's registry: what has shipped, under which alias, and how it gets there whole or not at all.

A version is made when all its files are there, with all its tags; that the alias `champion` moves is what ships it.
`previous` and `anchor` follow from the champion and its tags, so that a process that is killed leaves nothing unsaid:
whoever comes next moves what it did not.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException

from conf.errors import UserError
from conf.steps import ALIASES
from flows.mlflow_connection import forget_database, requests_within
from flows.registry.versions import CANDIDATE, REPLACES, SHIPPED, STATE, WITHDRAWN, Version
from stages.cache import cache_dir, make_once
from stages.locks import locked

_CHAMPION, _PREVIOUS, _ANCHOR = ALIASES
_ABSENT = "RESOURCE_DOES_NOT_EXIST"
_LONGEST = 5000
"""Characters of a description that MLflow's databases keep; most refuse one more, which must not stop a rollback."""


class Registry:
    """One registered model.

    Args:
        uri: MLflow's tracking URI.
        name: The model's name.

    Every method raises what MLflow, or a database under it, raises.
    """

    def __init__(self, uri: str, name: str) -> None:
        self.uri, self.name = uri, name

    @cached_property
    def client(self) -> MlflowClient:
        """MLflow's own client."""
        return MlflowClient(tracking_uri=self.uri)

    def forget(self) -> None:
        """Connect anew the next time; after a failure, what is connected to may be gone."""
        forget_database(self.uri)

    @contextmanager
    def locked(self, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the model against other processes of this machine, and finish what a killed one began.

        Args:
            on_wait: Called every half second for as long as another process holds it; it ends the wait by raising.
        """
        with locked(self._lock_path(), on_wait), requests_within(120):
            self._settle()
            yield

    def aliases(self) -> dict[str, Version]:
        """What `champion`, `previous` and `anchor` mean; nothing while nothing has shipped."""
        return self._meant(self._numbers())

    def champion(self) -> Version | None:
        """What has shipped last."""
        number = self._numbers().get(_CHAMPION)
        return None if number is None else self.version(number)

    def named(self, where: str) -> Version | None:
        """A version by its number, or by any alias."""
        if where.isdigit():
            return self.version(int(where))
        if where in ALIASES:
            return self.aliases().get(where)
        number = self._numbers().get(where)
        return None if number is None else self.version(number)

    def version(self, number: int) -> Version | None:
        """A version by its number; None where there is none (any more)."""
        found = None if self._is_new() else _or_none(lambda: self.client.get_model_version(self.name, str(number)))
        return None if found is None else Version.of(found)

    def tagged(self, tag: str, value: str) -> list[Version]:
        """The versions that have a tag with this value, the newest first."""
        if self._is_new():
            return []
        found = self.client.search_model_versions(f"name = '{self.name}' and tags.`{tag}` = '{value}'")
        return sorted(map(Version.of, found), key=lambda version: -version.number)

    def create(self, source: str, run_id: str, model_id: str, tags: Mapping[str, str], description: str) -> Version:
        """Make a version of files that are complete."""
        if _or_none(lambda: self.client.get_registered_model(self.name)) is None:
            self.client.create_registered_model(self.name)
        made = self.client.create_model_version(
            self.name, source, run_id, tags={**tags, STATE: CANDIDATE}, description=description, model_id=model_id
        )
        return Version.of(made)

    def promote(self, version: Version) -> None:
        """Make a version the champion, and the present one the previous; to be called with the lock held."""
        before = self.champion()
        if before is None and version.replaces:
            self.client.delete_model_version_tag(self.name, str(version.number), REPLACES)
        if before is not None and before.number != version.number:
            self.tag(version, REPLACES, str(before.number))
        self._point(_CHAMPION, version)
        self._settle()

    def require_previous(self) -> tuple[Version, Version]:
        """The champion and the previous one.

        Raises:
            UserError: There is no previous one.
        """
        found = self.aliases()
        if _PREVIOUS not in found:
            only = f"{found[_CHAMPION]} is the first champion" if found else self._nothing()
            raise UserError(f"rollback: {only}, so there is none to go back to; `ratchet promote RUN` ships another")
        return found[_CHAMPION], found[_PREVIOUS]

    def _nothing(self) -> str:
        names = [] if self._is_new() else [model.name for model in self.client.search_registered_models()]
        others = f" (--name tells which of: {', '.join(names)})" if names else ""
        return f"nothing has shipped as {self.name}{others}"

    def rollback(self) -> Version:
        """Make the previous champion the champion again, and withdraw the present one; with the lock held.

        Raises:
            UserError: There is no previous one.
        """
        champion, previous = self.require_previous()
        self.tag(champion, STATE, WITHDRAWN)
        self._point(_CHAMPION, previous)
        self._settle()
        return previous

    def pin_anchor(self, version: Version) -> None:
        """Make a version the anchor."""
        self._point(_ANCHOR, version)

    def tag(self, version: Version, name: str, value: str) -> None:
        """Set a tag of a version."""
        self.client.set_model_version_tag(self.name, str(version.number), name, value)

    def note(self, version: Version, line: str) -> None:
        """Add a line to what is said of a version."""
        present = self.version(version.number) or version
        text = _bounded(f"{present.description}\n\n{line}".strip())
        self.client.update_model_version(self.name, str(version.number), text)

    def directory(self, version: Version) -> Path:
        """The directory from which a version loads with plain transformers; downloaded on first use.

        Raises:
            UserError: Its files are gone.
        """
        if version.source.startswith(("file:", "/")):
            folder = Path(url2pathname(urlsplit(version.source).path)) / "model"
            if not folder.is_dir():
                raise UserError(f"{version}: its files are gone, there is no directory {folder}; ship another")
            return folder
        key = sha256(f"{self.uri} {version.source}".encode()).hexdigest()[:16]

        def download(draft: Path) -> None:
            with requests_within(120):
                download_artifacts(f"{version.source}/model", dst_path=str(draft), tracking_uri=self.uri)

        return make_once(cache_dir() / "registry" / f"{version.name}-{version.number}-{key}", download) / "model"

    def _numbers(self) -> dict[str, int]:
        """The version number of every alias."""
        model = None if self._is_new() else _or_none(lambda: self.client.get_registered_model(self.name))
        return {alias: int(number) for alias, number in model.aliases.items()} if model else {}

    def _meant(self, numbers: Mapping[str, int]) -> dict[str, Version]:
        """What the aliases mean, from the numbers they point to: `previous` and `anchor` may have been left behind."""
        champion = self.version(numbers[_CHAMPION]) if _CHAMPION in numbers else None
        if champion is None:
            return {}
        previous = self.version(champion.replaces) if champion.replaces else None
        pinned = numbers.get(_ANCHOR, champion.number)
        known = {each.number: each for each in (champion, previous) if each}
        anchor = known.get(pinned) or self.version(pinned) or champion
        return {_CHAMPION: champion, **({_PREVIOUS: previous} if previous else {}), _ANCHOR: anchor}

    def _settle(self) -> None:
        """Move the aliases that follow from the champion to where they belong."""
        numbers = self._numbers()
        found = self._meant(numbers)
        if not found:
            return
        if found[_CHAMPION].state != SHIPPED:
            self.tag(found[_CHAMPION], STATE, SHIPPED)
        for alias in (_PREVIOUS, _ANCHOR):
            if alias in found and numbers.get(alias) != found[alias].number:
                self._point(alias, found[alias])
            elif alias not in found and alias in numbers:
                self.client.delete_registered_model_alias(self.name, alias)

    def _point(self, alias: str, version: Version) -> None:
        self.client.set_registered_model_alias(self.name, alias, str(version.number))

    def _is_new(self) -> bool:
        """Whether there is not even a database: asking MLflow would make one."""
        return self.uri.startswith("sqlite:///") and not Path(self.uri.removeprefix("sqlite:///")).exists()

    def _lock_path(self) -> Path:
        """Beside a database, where all who share it find it; for a server, one per user and machine."""
        name = sha256(f"{self.uri} {self.name}".encode()).hexdigest()[:16]
        if self.uri.startswith("sqlite:///"):
            return Path(self.uri.removeprefix("sqlite:///")).with_name(f".registry-{name}.lock")
        return cache_dir() / "registry" / f".{name}.lock"


def _bounded(text: str) -> str:
    """A text without its middle, where it is too long: how it began, and what was added last."""
    half = _LONGEST // 2 - 10
    return text if len(text) <= _LONGEST else f"{text[:half]}\n\n...\n\n{text[-half:]}"


def _or_none(get: Callable[[], Any]) -> Any:
    """What MLflow has, or None where it has no such thing."""
    try:
        return get()
    except MlflowException as error:
        if error.error_code != _ABSENT:
            raise
        return None
