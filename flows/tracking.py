"""The only place that knows MLflow: one parent run per pipeline, a child per step, metrics row by row.

A `MlflowClient` with explicit run ids throughout: the fluent API is thread-local. A store entry owns one run, which is
reopened when the stage is made again; a cached step gets a light child that links to it.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from conf.errors import UserError
from conf.schema import TrackingConfig

logging.getLogger("alembic").setLevel(logging.WARNING)  # the first use of a database migrates it, line by line

_PARAMETER_LENGTH = 500
_BATCH = 100


class Tracker:
    """Records runs in one MLflow experiment.

    Raises:
        UserError: The tracking server cannot be reached.
    """

    def __init__(self, config: TrackingConfig, runs_dir: Path) -> None:
        embedded = f"sqlite:///{runs_dir / 'mlflow.db'}"
        self.uri = config.uri or os.environ.get("MLFLOW_TRACKING_URI") or embedded
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            with _impatient(), FileLock(runs_dir / ".mlflow.lock"):  # two first migrations at once fail half-way
                self.client = MlflowClient(tracking_uri=self.uri)
                found = self.client.get_experiment_by_name(config.experiment)
                location = (runs_dir / "mlartifacts").as_uri() if self.uri == embedded else None
                self.experiment = (
                    found.experiment_id if found else self.client.create_experiment(config.experiment, location)
                )
        except Exception as error:  # a database's driver may be missing, or raise what it likes
            raise UserError(
                f"tracking.uri: cannot use MLflow at {self.uri} ({_first_line(error)}); give the URL of a running "
                "server, sqlite:///FILE, or none for the embedded database"
            ) from error

    def start(self, name: str, parent: str | None = None, tags: Mapping[str, str] | None = None) -> str:
        """Open a run (a child of `parent` when there is one); returns its id."""
        nested = {"mlflow.parentRunId": parent} if parent else {}
        run = self.client.create_run(self.experiment, tags={**nested, **(tags or {})}, run_name=name)
        return str(run.info.run_id)

    def reopen(self, run_id: str, parent: str) -> bool:
        """Continue a run that an interrupted attempt began; False when this server does not have it."""
        try:
            self.client.update_run(run_id, status="RUNNING")
            self.client.set_tag(run_id, "mlflow.parentRunId", parent)
        except MlflowException:
            return False
        return True

    def params(self, run_id: str, values: Mapping[str, Any]) -> None:
        """Log nested settings as flat parameters (`lora.r`)."""
        flat = [Param(key, str(value)[:_PARAMETER_LENGTH]) for key, value in flatten(values)]
        for begin in range(0, len(flat), _BATCH):
            self.client.log_batch(run_id, params=flat[begin : begin + _BATCH])

    def metrics(self, run_id: str, values: Mapping[str, float], step: int = 0) -> None:
        """Log numbers that belong to one step. With a `timestamp` of their own, logging them again adds nothing."""
        when = round(values.get("timestamp", time.time() * 1000))
        named = {name: value for name, value in values.items() if name not in ("step", "timestamp")}
        metrics = [Metric(name, float(value), when, step) for name, value in named.items()]
        for begin in range(0, len(metrics), _BATCH):
            self.client.log_batch(run_id, metrics=metrics[begin : begin + _BATCH])

    def tags(self, run_id: str, values: Mapping[str, str]) -> None:
        """Set tags."""
        self.client.log_batch(run_id, tags=[RunTag(key, value) for key, value in values.items()])

    def artifact(self, run_id: str, path: Path) -> None:
        """Log a file, or a directory under its own name."""
        if path.is_dir():
            self.client.log_artifacts(run_id, str(path), artifact_path=path.name)
        else:
            self.client.log_artifact(run_id, str(path))

    def finish(self, run_id: str, status: str = "FINISHED") -> None:
        """Close a run: FINISHED, FAILED or KILLED."""
        self.client.set_terminated(run_id, status)


@contextmanager
def _impatient() -> Iterator[None]:
    """First contact: a server that is not there should not be asked for minutes, as one that was there before should.

    What the user has set stays.
    """
    limits = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
    ours = {name: value for name, value in limits.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested mappings as pairs of dotted key and value."""
    flat: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat += flatten(value, f"{prefix}{key}.")
        else:
            flat.append((f"{prefix}{key}", value))
    return flat
