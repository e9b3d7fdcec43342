"""What was computed once and is found again by whoever needs the same, in any step and any run: scores of a model.

One file per key, which names everything that determines the content; a file vouches for its content with a hash.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stages.cache import write_atomically
from stages.locks import locked


class KeptScores:
    """Plain JSON values by key.

    Args:
        folder: Where they are kept; with None they are only remembered for as long as this object lives.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[str, Any] = {}

    def get(self, key: Mapping[str, Any], make: Callable[[], Any], on_wait: Callable[[], None]) -> Any:
        """The value of a key; it is made when it is not there or damaged.

        Two processes that need the same value make it once: the second waits.

        Args:
            key: Everything that determines the value, as plain JSON.
            make: Makes the value, as plain JSON.
            on_wait: Called every half second for as long as another process makes it; it ends the wait by raising.
        """
        name = _sha256(key)
        if name not in self._known:
            self._known[name] = make() if self._folder is None else self._kept(self._folder / name, make, on_wait)
        return self._known[name]

    def _kept(self, place: Path, make: Callable[[], Any], on_wait: Callable[[], None]) -> Any:
        path = place.with_suffix(".json")
        value = _read(path)
        if value is None:
            with locked(place.with_name(f".{place.name}.lock"), on_wait):
                value = _read(path)
                if value is None:
                    value = make()
                    write_atomically(path, json.dumps({"sha256": _sha256(value), "value": value}) + "\n")
        return value


def _read(path: Path) -> Any:
    """The value in a file; None when it is not there or not whole."""
    with suppress(FileNotFoundError, ValueError, LookupError, TypeError):
        saved = json.loads(path.read_text(encoding="utf-8"))
        if saved["sha256"] == _sha256(saved["value"]):
            return saved["value"]
    return None


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
