"""Replies that are on disk as soon as they are made, so that an interrupted stage need not make them again.

One file per stage, one line per batch. A batch is known by everything that determines it, and with it is kept the
random state it left behind: whoever goes on from there draws what an uninterrupted call would have drawn.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

FILE = "replies.jsonl"


class KeptReplies:
    """The batches of one call.

    Args:
        path: The stage's file; None keeps nothing.
        call: Everything that determines the call's replies, as plain JSON.
        device: Where is drawn.
    """

    def __init__(self, path: Path | None, call: Any, device: torch.device) -> None:
        self.path, self.device = path, device
        self._call = hashlib.sha256(json.dumps(call).encode()).hexdigest()
        self._known = {line["batch"]: line for line in _lines(path) if line["call"] == self._call}

    def get(self, batch: int) -> list[Any] | None:
        """The replies of a batch, if they are there; the random state is then the one they left."""
        line = self._known.get(batch)
        if line is None:
            return None
        self._set_random_state(bytes.fromhex(line["random"]))
        replies: list[Any] = line["replies"]
        return replies

    def add(self, batch: int, replies: Sequence[Any]) -> None:
        """Keep the replies of a batch, as plain JSON."""
        if self.path is not None:
            line = {"call": self._call, "batch": batch, "replies": replies, "random": self._random_state().hex()}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _random_state(self) -> bytes:
        cuda = self.device.type == "cuda"
        state = torch.cuda.get_rng_state(self.device) if cuda else torch.get_rng_state()
        return bytes(state.numpy())

    def _set_random_state(self, state: bytes) -> None:
        tensor = torch.frombuffer(bytearray(state), dtype=torch.uint8)
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(tensor, self.device)
        else:
            torch.set_rng_state(tensor)


def _lines(path: Path | None) -> list[dict[str, Any]]:
    """What the file has, up to the first line that is not whole."""
    lines: list[dict[str, Any]] = []
    if path is not None and path.is_file():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
                break
    return lines
