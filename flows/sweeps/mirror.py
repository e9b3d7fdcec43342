"""MLflow's run of a sweep: the parent of its cells' runs, with the leaderboard and the report as artifacts."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from conf.schema import TrackingConfig
from flows.mirror import STATUS
from flows.sweeps.leaderboard import Leaderboard
from flows.sweeps.record import SweepRecord
from flows.tracking import Tracker


class SweepMirror:
    """Keeps MLflow informed of a sweep, as far as it can be reached.

    Args:
        config: The section `tracking`.
        runs_dir: Where the embedded database lives.
        record: The sweep's record.
        say: Told when MLflow goes away.

    Raises:
        UserError: MLflow cannot be used, and is required.
    """

    def __init__(self, config: TrackingConfig, runs_dir: Path, record: SweepRecord, say: Callable[[str], None]) -> None:
        self._record, self._say = record, say
        self._tracker = Tracker(config, runs_dir, say)
        self._tracker.attempt(self._open, required=config.required)

    def _open(self) -> None:
        name = self._record.id
        run = self._tracker.open(name, name, {"ratchet.sweep": name}, round(time.time() * 1000))
        self._record.update(mlflow_run=run)

    def close(self, state: str, found: Leaderboard | None, files: Sequence[Path]) -> None:
        """Send how the sweep ended."""

        def send() -> None:
            run = self._record.values["mlflow_run"]
            if run is None:
                self._open()
                run = self._record.values["mlflow_run"]
            for path in files:
                self._tracker.artifact(run, path)
            if found is not None:
                self._tracker.rows(run, [{**_numbers(found), "step": 0}])
                self._tracker.tag(run, "ratchet.winner", found.why)
            self._tracker.status(run, STATUS[state])

        if not self._tracker.attempt(send, insist=True):
            self._say("the leaderboard is not in MLflow; the same command sends it when MLflow is back")


def _numbers(found: Leaderboard) -> dict[str, float]:
    scored = [group.mean for group in found.groups if group.mean is not None]
    best = {"select.best": max(scored)} if scored else {}
    return {**best, **{f"seconds.{name}": seconds for name, seconds in found.sharing.items()}}
