"""What runs log: one experiment of MLflow, reached when it can be reached.

A `MlflowClient` with explicit run ids throughout: the fluent API is thread-local. What is sent, and when, is decided in
`flows.mirror`; here an outage becomes a line for the person who waits, and never an exception of a run under way.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS
from pyarrow import parquet

from conf.schema import TrackingConfig
from flows.mlflow_connection import (
    complaint,
    embedded_uri,
    first_line,
    forget_database,
    make_database,
    requests_within,
    tracking_uri,
)

_PARAMETER_LENGTH = 500
_BATCH = {"params": 100, "metrics": 1000}
_LONGEST_PAUSE = 60.0
_SHARE = 10
"""Waiting for a server that does not answer takes at most one part in so many of the time."""


class Tracker:
    """Records runs in one MLflow experiment.

    Args:
        config: The section `tracking`.
        runs_dir: Where the embedded database lives.
        say: Told when MLflow goes away, comes back, or refuses something.

    Raises:
        UserError: MLflow cannot be used, and is required; UnreachableError where that may pass.
    """

    def __init__(self, config: TrackingConfig, runs_dir: Path, say: Callable[[str], None] = lambda line: None) -> None:
        self.uri = tracking_uri(config, runs_dir)
        self.required = config.required
        self.connections = 0
        self._experiment_name = config.experiment
        self._location = (runs_dir / "mlartifacts").as_uri() if self.uri == embedded_uri(runs_dir) else None
        self._runs_dir = runs_dir
        self._say = say
        self._refused: set[str] = set()
        self._client: MlflowClient | None = None
        self._pause = 0.0
        self._not_before = 0.0
        self.attempt(lambda: None, required=self.required)

    def attempt(self, action: Callable[[], None], *, insist: bool = False, required: bool = False) -> bool:
        """Do something with MLflow, unless it failed a moment ago; returns whether it was done.

        Args:
            action: Calls the methods below; what it has to do it must be able to do again from the start.
            insist: Try even if it failed a moment ago.
            required: Raise instead of going on without.

        Raises:
            UserError: It failed, and is required; UnreachableError where that may pass.
        """
        if time.monotonic() < self._not_before and not insist:
            return False
        started = time.monotonic()
        try:
            with requests_within(10):
                self._connect()
                action()
        except Exception as error:  # a database's driver raises what it likes
            self._lost(error, time.monotonic() - started, required)
            return False
        if self._pause:
            self._say(f"MLflow at {self.uri} is back")
        self._pause = 0.0
        return True

    def open(self, identity: str, name: str, tags: Mapping[str, str], started: int) -> str:
        """The run with this identity, made unless an attempt whose answer got lost has made it; returns its id."""
        query = f"tags.`ratchet.id` = '{identity}'"
        found = self.client.search_runs([self._experiment], query, max_results=1)
        run = found[0] if found else None
        if run is None:
            every = {"ratchet.id": identity, **tags}
            run = self.client.create_run(self._experiment, start_time=started, tags=every, run_name=name)
        return str(run.info.run_id)

    def lifecycle(self, run_id: str) -> str | None:
        """`active`, `deleted` by a user, or None for a run that MLflow does not know."""
        try:
            return str(self.client.get_run(run_id).info.lifecycle_stage)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def tag(self, run_id: str, name: str, value: str) -> None:
        """Set a tag."""
        self.client.set_tag(run_id, name, value)

    def params(self, run_id: str, values: Mapping[str, Any]) -> None:
        """Log nested settings as flat parameters (`lora.r`)."""
        self._log(run_id, "params", [Param(key, str(value)[:_PARAMETER_LENGTH]) for key, value in flatten(values)])

    def rows(self, run_id: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Log rows of numbers, each with its `step` and `timestamp`: logging them again adds nothing."""
        metrics = [
            Metric(name, float(value), int(row.get("timestamp", 0)), round(row["step"]))
            for row in rows
            for name, value in row.items()
            if name not in ("step", "timestamp")
        ]
        self._log(run_id, "metrics", metrics)

    def artifact(self, run_id: str, path: Path) -> None:
        """Log a file, or a directory under its own name."""
        with requests_within(120):  # a server answers when it has put the file where it keeps files
            if path.is_dir():
                self.client.log_artifacts(run_id, str(path), artifact_path=path.name)
            else:
                self.client.log_artifact(run_id, str(path))

    def table(self, run_id: str, path: Path) -> None:
        """Log a parquet file as a table that MLflow shows, `<name>.json`; logging it again replaces it.

        `MlflowClient.log_table` would add the rows to those that are there.
        """
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{path.stem}.json"
            table = parquet.read_table(path)
            rows = [list(row.values()) for row in table.to_pylist()]
            file.write_text(json.dumps({"columns": table.column_names, "data": rows}), encoding="utf-8")
            self.artifact(run_id, file)
        self.tag(run_id, MLFLOW_LOGGED_ARTIFACTS, json.dumps([{"path": file.name, "type": "table"}]))

    def status(self, run_id: str, status: str, ended: int | None = None) -> None:
        """RUNNING, or the end of a run: FINISHED, FAILED or KILLED."""
        if status == "RUNNING":
            self.client.update_run(run_id, status=status)
        else:
            self.client.set_terminated(run_id, status, ended)

    @property
    def client(self) -> MlflowClient:
        """MLflow's own client, while there is a connection."""
        assert self._client is not None
        return self._client

    @property
    def experiment(self) -> str:
        """The experiment's id, while there is a connection."""
        return self._experiment

    def _connect(self) -> None:
        if self._client is not None:
            return
        self._runs_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(self._runs_dir / ".mlflow.lock", timeout=120):  # two first migrations at once fail half-way
            if self._location:
                make_database(self._runs_dir / "mlflow.db")
            client = MlflowClient(tracking_uri=self.uri)
            found = client.get_experiment_by_name(self._experiment_name)
            self._experiment = str(
                found.experiment_id if found else client.create_experiment(self._experiment_name, self._location)
            )
        self._client = client
        self.connections += 1

    def _lost(self, error: Exception, took: float, required: bool) -> None:
        self._client = None
        forget_database(self.uri)
        if required:
            text = (
                f"tracking.uri: cannot use MLflow at {self.uri} ({first_line(error)}); give the URL of a running "
                "server, sqlite:///FILE, or none for the embedded database; tracking.required=false goes on without"
            )
            raise complaint(error, text) from error
        if not self._pause:
            reason = first_line(error)
            self._say(
                f"MLflow at {self.uri} cannot be used ({reason}); the run goes on, and what it logs is sent later"
            )
        self._pause = max(min(2 * self._pause or 2.0, _LONGEST_PAUSE), (_SHARE - 1) * took)
        self._not_before = time.monotonic() + self._pause

    def _log(self, run_id: str, kind: str, values: list[Any]) -> None:
        for begin in range(0, len(values), _BATCH[kind]):
            try:
                self.client.log_batch(run_id, **{kind: values[begin : begin + _BATCH[kind]]})
            except MlflowException as error:
                if error.error_code != "INVALID_PARAMETER_VALUE":
                    raise
                self._tell_refused(f"MLflow refuses {kind}: {first_line(error)}")  # and would do so again

    def _tell_refused(self, line: str) -> None:
        if line not in self._refused:
            self._refused.add(line)
            self._say(line)


def flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested mappings as pairs of dotted key and value."""
    flat: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat += flatten(value, f"{prefix}{key}.")
        else:
            flat.append((f"{prefix}{key}", value))
    return flat
