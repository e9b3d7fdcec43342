"""What must not leave this machine: where things lie on it, and what only its environment knows."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conf.errors import UserError
from flows.compose import overridden
from flows.secrets import USER, is_secret_setting, secrets_of

_BEFORE = r"(?:(?<![\w.~-])|(?<=\\[nrt]))"
"""A place begins after no part of another path or address; in JSON it may follow an escaped end of a line."""
_FREE = ("args", "trainer", "chat_template_kwargs")
"""Settings that libraries and users' own code read as they like."""
_SHORTEST = 8
"""Characters of a secret; shorter values of a variable that is called like one are ordinary words."""


class Redaction:
    """The places and secrets of this machine.

    Args:
        places: Directories by what they are called in a bundle, e.g. the directory of a project: `.`.
    """

    def __init__(self, places: Mapping[Path, str]) -> None:
        every = {**places, Path.cwd(): ".", Path.home(): "~"}
        names = {str(path): name for path, name in every.items()} | {
            str(path.resolve()): name for path, name in every.items()
        }
        self._places = {path: names[path] for path in sorted(names, key=len, reverse=True) if path != "/"}
        self._patterns = {path: re.compile(_BEFORE + re.escape(path) + r"(?![\w-])") for path in self._places}
        secrets = ((name, secret) for name, value in os.environ.items() for secret in secrets_of(name, value))
        self._secrets = [(name, _written(secret)) for name, secret in secrets if len(secret) >= _SHORTEST]

    def values(self, value: Any) -> Any:
        """Plain values, with places by their names in the bundle and without the user and password of an address."""
        if isinstance(value, Mapping):
            return {key: self.values(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.values(item) for item in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        for path, name in self._places.items():
            text = self._patterns[path].sub(name, text)
        return USER.sub("***@", text)

    def place_in(self, content: bytes) -> str | None:
        """A place of this machine that a content names, if it names one."""
        return next((path for path in self._places if self._bytes(path).search(content)), None)

    def secret_in(self, content: bytes) -> str | None:
        """The environment variable whose secret a content has, if it has one."""
        return next((name for name, ways in self._secrets if any(way in content for way in ways)), None)

    def _bytes(self, path: str) -> re.Pattern[bytes]:
        return re.compile(self._patterns[path].pattern.encode())


def _written(secret: str) -> set[bytes]:
    """A secret as a file may have it: as it is, or as JSON writes it."""
    ways = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    return {way.encode(errors="surrogateescape") for way in ways}


def refuse_private(value: Any, key: str = "", free: bool = False) -> None:
    """See that a configuration has no secrets, and that what is left to others (`free`) names no place.

    Raises:
        UserError: Names the key.
    """
    if isinstance(value, Mapping):
        for name, item in value.items():
            if is_secret_setting(str(name)) and isinstance(item, str) and item:
                raise UserError(
                    f"{key}{name}: looks like a secret, which a bundle must not have; take it from the environment"
                )
            refuse_private(item, f"{key}{name}.", free or name in _FREE)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            refuse_private(item, f"{key}{index}.", free)
    elif isinstance(value, str) and USER.search(value):
        raise UserError(f"{key[:-1]}: has a user or password in an address, which a bundle must not have; leave it out")
    elif isinstance(value, str) and free and value.startswith(("/", "~")):
        raise UserError(f"{key[:-1]}: names {value}, which another machine does not have; give a relative path")


def without(overrides: Sequence[str], stays: str) -> list[str]:
    """Overrides, without those that name a setting of this machine, also among others of a section.

    Args:
        overrides: As on a command line.
        stays: A pattern of the settings that stay here.
    """
    return [text for text in overrides if not any(re.search(stays, key) for key in overridden([text]))]
