"""Being asked to end early: a stage then keeps what it has done, and the same command continues.

Asked by `ratchet cancel`, by SIGTERM or by Ctrl-C; a second signal ends the run at once. Python delivers signals to the
main thread alone; a flow that runs elsewhere is stopped by whoever runs it.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from stages.cache import write_atomically
from stages.contract import Interrupted

CANCEL = "cancel"
"""Name of the file in a run's folder that asks the run to end, and the reason when it did."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ENDS = "ends as soon as what is done is kept"


class Stopped(Interrupted):
    """A run ended early because it was asked to, for a reason: SIGINT, SIGTERM or cancel."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(f"{'cancelled' if reason == CANCEL else 'interrupted'}; the same command continues")
        self.reason = reason
        self.exit_code = 128 + (signal.SIGINT if reason == signal.SIGINT.name else signal.SIGTERM)


class StopRequest:
    """Whether a run was asked to end, and by what.

    Args:
        say: Told so at once, for the person who waits.
        folders: The run's folder, where `ratchet cancel` leaves its request, and that of the sweep it is a cell of; the
            request of a sweep that received a signal says which.
    """

    def __init__(self, say: Callable[[str], None], *folders: Path) -> None:
        self._say = say
        self._requests = [folder / CANCEL for folder in folders]
        self.reason: str | None = None

    def requested(self) -> bool:
        """Whether to end as soon as nothing is lost by it."""
        if self.reason is None:
            for request in self._requests:
                if request.exists():
                    reason = request.read_text(encoding="utf-8") or CANCEL
                    self._take(reason, f"{'cancelled' if reason == CANCEL else reason}: {_ENDS}")
                    break
        return self.reason is not None

    def check(self, what: str) -> None:
        """End what is under way, if it was asked for.

        Raises:
            Interrupted: It was.
        """
        if self.requested():
            raise Interrupted(f"{what}: interrupted")

    def pass_on(self) -> None:
        """Ask those to end, too, who look into the same folder: the cells of a sweep."""
        if self.reason is not None and not self._requests[0].exists():
            write_atomically(self._requests[0], "" if self.reason == CANCEL else self.reason)

    def ended(self, error: BaseException) -> str:
        """How a run has ended that ends with this error: `cancelled`, `interrupted` or `failed`."""
        if isinstance(error, Interrupted):
            return "cancelled" if self.reason == CANCEL else "interrupted"
        return "failed" if isinstance(error, Exception) else "interrupted"

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
        self._take(received.name, f"{received.name}: {_ENDS}; once more ends it at once")

    def _take(self, reason: str, text: str) -> None:
        self.reason = reason
        self._say(text)
