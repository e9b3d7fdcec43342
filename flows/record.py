"""`pipeline.json`: what one run of a pipeline is, was given, and has come to; rewritten whenever a step changes."""

import contextlib
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import conf
from conf.loader import dump
from conf.run import RunConfig
from flows.live_record import LiveRecord, new_id, this_process, time_text
from flows.store import write_json

FORMAT = 1
_VERSIONS = ("ratchet", "torch", "transformers", "peft", "trl", "datasets", "prefect", "mlflow", "hydra-core")


PROGRESS = "progress.json"
"""Beside the record: how far the step under way is; written often, and worth nothing once the run is over."""
_PROGRESS_SECONDS = 1.0


class Record(LiveRecord):
    """The record of one pipeline run, on disk from `begin` on at every moment.

    Args:
        config: The run's configuration.
        runs_dir: Where runs live.
        overrides: What was asked for.
        command: The whole command line that starts the run again.
        run_id: Of a run that another process has begun for this one, and holds alive through a descriptor it left us.
    """

    file = "pipeline.json"

    def __init__(
        self,
        config: RunConfig,
        runs_dir: Path,
        overrides: Sequence[str],
        command: Sequence[str] = (),
        run_id: str | None = None,
    ) -> None:
        now = datetime.now(UTC)
        name = config.sections.name
        folder = runs_dir / "pipelines" / (run_id or new_id(name, now))
        self._is_ours = run_id is None
        self._progress_at = 0.0
        values = {
            "format": FORMAT,
            "id": folder.name,
            "name": name,
            "state": "running",
            "verdict": None,
            "started": time_text(now),
            "ended": None,
            "overrides": list(overrides),
            "command": list(command),
            **this_process(),
            "git_commit": git_commit(),
            "versions": {"python": platform.python_version(), **{name: version(name) for name in _VERSIONS}},
            "prefect_run": None,
            "prefect_attempt": None,
            "prefect_url": None,
            "prefect_told": False,
            "mlflow_run": None,
            "mlflow_uri": None,
            "mlflow_done": False,
            "aliases": {},
            "original": None,
            "registered": {},
            "sweep": None,
            "steps": {name: _waiting(step.stage, step.start) for name, step in config.steps.items()},
            "config": dump(config.sections),
        }
        super().__init__(folder, values)

    @classmethod
    def existing(cls, runs_dir: Path, values: dict[str, Any]) -> "Record":
        """The record of an earlier run, to note in it what was told of it since."""
        record = cls.__new__(cls)
        LiveRecord.__init__(record, runs_dir / "pipelines" / values["id"], values)
        return record

    @property
    def steps(self) -> dict[str, Any]:
        """The steps' records by name."""
        steps: dict[str, Any] = self.values["steps"]
        return steps

    @property
    def holder(self) -> str:
        """The run and its process, for others that wait for it."""
        return f"{self.id} (pid {self.values['pid']} on {self.values['host']})"

    def begin(self, **values: Any) -> None:
        """Write the record for the first time, and be alive from now on."""
        self.folder.mkdir(parents=True, exist_ok=not self._is_ours)
        if self._is_ours:
            self.hold()
        self.update(**values)

    def progress(self, step: str, what: str, done: int, total: int) -> None:
        """Let others see how far a step is, about once a second."""
        now = time.monotonic()
        if now - self._progress_at >= _PROGRESS_SECONDS:
            self._progress_at = now
            with contextlib.suppress(OSError):  # nobody's work depends on it
                write_json(self.folder / PROGRESS, {"step": step, "what": what, "done": done, "total": total})

    def update_step(self, name: str, **values: Any) -> None:
        """Change a step's fields."""
        self.steps[name].update(values)
        self._write()

    def end(self, state: str, verdict: str | None = None) -> None:
        """The run is over, and so is a step under way; others were skipped."""
        end_steps(self.steps, state)
        self.update(state=state, verdict=verdict, ended=time_text())
        (self.folder / PROGRESS).unlink(missing_ok=True)


def end_steps(steps: Mapping[str, Any], state: str) -> None:
    """Say of a step under way that it ended as its run did, and of those that never began that they were skipped."""
    ended = {"pending": "skipped", "waiting": "skipped", "running": state}
    for step in steps.values():
        step["state"] = ended.get(step["state"], step["state"])


def ratchet_commit() -> str | None:
    """The commit of Ratchet's own source, or None where it was installed without a repository."""
    source = Path(conf.__file__).parents[1]
    return git_commit(source) if (source / ".git").exists() else None


def git_commit(folder: Path | None = None) -> str | None:
    """The commit of a directory, or of the current one (`-dirty` with changes), or None outside a repository."""
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _waiting(stage: str, start: str) -> Mapping[str, Any]:
    return {
        "stage": stage,
        "start": start,
        "state": "pending",
        "store": None,
        "seconds": None,
        "metrics": {},
        "report": "",
        "mlflow_run": None,
        "error": None,
    }
