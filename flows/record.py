"""`pipeline.json`: what one run of a pipeline is, was given, and has come to; rewritten whenever a step changes."""

import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from conf.loader import dump
from conf.run import RunConfig
from flows.store import write_json

FORMAT = 1
_VERSIONS = ("ratchet", "torch", "transformers", "peft", "trl", "datasets", "prefect", "mlflow", "hydra-core")


class Record:
    """The record of one pipeline run, on disk at every moment."""

    def __init__(self, config: RunConfig, runs_dir: Path, overrides: Sequence[str]) -> None:
        now = datetime.now(UTC)
        name = config.sections.name
        self.folder = runs_dir / "pipelines" / f"{name}-{now:%Y%m%d-%H%M%S-%f}"
        self.values: dict[str, Any] = {
            "format": FORMAT,
            "id": self.folder.name,
            "name": name,
            "state": "running",
            "verdict": None,
            "started": now.isoformat(timespec="milliseconds"),
            "ended": None,
            "overrides": list(overrides),
            "git_commit": git_commit(),
            "versions": {"python": platform.python_version(), **{name: version(name) for name in _VERSIONS}},
            "prefect_run": None,
            "prefect_url": None,
            "prefect_told": False,
            "mlflow_run": None,
            "mlflow_uri": None,
            "mlflow_done": False,
            "steps": {name: _waiting(step.stage, step.start) for name, step in config.steps.items()},
            "config": dump(config.sections),
        }

    @classmethod
    def existing(cls, runs_dir: Path, values: dict[str, Any]) -> "Record":
        """The record of an earlier run, to note in it what was told of it since."""
        record = cls.__new__(cls)
        record.folder, record.values = runs_dir / "pipelines" / values["id"], values
        return record

    @property
    def id(self) -> str:
        """`<name>-<time>`."""
        return self.folder.name

    @property
    def steps(self) -> dict[str, Any]:
        """The steps' records by name."""
        steps: dict[str, Any] = self.values["steps"]
        return steps

    def update(self, **values: Any) -> None:
        """Change the run's own fields."""
        self.values.update(values)
        self._write()

    def update_step(self, name: str, **values: Any) -> None:
        """Change a step's fields."""
        self.steps[name].update(values)
        self._write()

    def end(self, state: str, verdict: str | None = None) -> None:
        """The run is over: `completed`, `stopped` or `failed`; steps that never began are marked as skipped."""
        for step in self.steps.values():
            if step["state"] == "pending":
                step["state"] = "skipped"
        self.update(state=state, verdict=verdict, ended=datetime.now(UTC).isoformat(timespec="milliseconds"))

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "pipeline.json", self.values)


def git_commit() -> str | None:
    """The commit of the current directory (`-dirty` with changes), or None outside a repository."""
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
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
