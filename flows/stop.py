"""Being asked to end early: the first SIGTERM or Ctrl-C lets a stage keep what it has done, the second ends it at once.

Python delivers signals to the main thread alone; a flow that runs elsewhere is stopped by whoever runs it.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether a run was asked to end, and by what.

    Args:
        say: Told so at once, for the person who waits.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._signal: signal.Signals | None = None

    @property
    def reason(self) -> str | None:
        """What asked (`SIGINT`, `SIGTERM`), or None."""
        return self._signal.name if self._signal else None

    def requested(self) -> bool:
        """Whether to end as soon as nothing is lost by it."""
        return self.reason is not None

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Listen to signals; a second one does what the first would have done without us."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        self._before: dict[signal.Signals, Any] = before
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        for each, handler in self._before.items():
            signal.signal(each, handler)
        self._signal = received
        self._say(f"{received.name}: ends as soon as what is done is kept; once more ends it at once")
