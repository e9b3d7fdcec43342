"""What must not leave this machine: where things lie on it, and what only its environment knows."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_USER = re.compile(r"(?<=://)[^/@\s]+@")
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(^|_)KEY($|_)", re.IGNORECASE)
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
        self._patterns = {path: re.compile(re.escape(path) + r"(?![\w-])") for path in self._places}
        secrets = {name: value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
        self._secrets = {name: value.encode() for name, value in secrets.items() if len(value) >= _SHORTEST}

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
        return _USER.sub("***@", text)

    def place_in(self, content: bytes) -> str | None:
        """A place of this machine that a content names, if it names one."""
        return next((path for path in self._places if self._bytes(path).search(content)), None)

    def secret_in(self, content: bytes) -> str | None:
        """The environment variable whose value a content has, if it has one."""
        return next((name for name, value in self._secrets.items() if value in content), None)

    def _bytes(self, path: str) -> re.Pattern[bytes]:
        return re.compile(self._patterns[path].pattern.encode())


def without(overrides: Iterable[str], key: str) -> list[str]:
    """Overrides of any key but one."""
    return [override for override in overrides if override.lstrip("+").split("=")[0] != key]
