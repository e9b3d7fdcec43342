"""What a person sees while a run goes on: one line per logged step, and how far long work is.

On a terminal the current state is one line that is rewritten; elsewhere (a log file) a line is written now and then.
"""

import sys
import time
from collections.abc import Mapping

_SHOWN = (
    "loss", "reward", "reward_std", "kl", "completion_len", "truncated", "all_equal", "resampled", "margin",
    "accuracy", "learning_rate",
)  # fmt: skip
_EVERY_SECONDS = 10.0


class Console:
    """Writes to standard error, so that standard output stays for results."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self._status = ""
        self._work = ""
        self._work_started = 0.0
        self._total = 0
        self._written = 0.0

    def say(self, text: str) -> None:
        """Write a line."""
        self._clear()
        print(text, file=sys.stderr, flush=True)

    def row(self, step: str, row: Mapping[str, float]) -> None:
        """Write one logged optimiser step."""
        numbers = "  ".join(f"{name} {row[name]:.4g}" for name in _SHOWN if name in row)
        done, total = round(row["step"]), self._total
        self.say(f"  {step}  {done}/{total}  {numbers}{self._left(done, total)}")

    def progress(self, step: str, what: str, done: int, total: int) -> None:
        """Show how far long work is, with the time left."""
        now = time.monotonic()
        if what != self._work or done == 0:
            self._work, self._work_started, self._written = what, now, now
        self._total = total
        line = f"  {step}  {what} {done}/{total}{self._left(done, total)}"
        if self.live:
            self._clear()
            self._status = line
            print(line, end="\r", file=sys.stderr, flush=True)
        elif what != "train" and now - self._written >= _EVERY_SECONDS:  # training writes a line per step anyway
            self._written = now
            self.say(line)

    def _left(self, done: int, total: int) -> str:
        if not 0 < done < total:
            return ""
        return f"  {clock((time.monotonic() - self._work_started) / done * (total - done))} left"

    def _clear(self) -> None:
        if self._status:
            print(" " * len(self._status), end="\r", file=sys.stderr)
            self._status = ""


def clock(seconds: float) -> str:
    """A duration as a person reads it: `0:07`, `12:30`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
