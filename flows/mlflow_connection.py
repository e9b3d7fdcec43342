"""How MLflow is reached: where it is, how long it may take to answer, and what its connections leave behind.

By itself MLflow waits for minutes, logs tracebacks, and keeps connections to files that are gone; importing this module
puts an end to the first two.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.db import utils as databases
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as RegistryStore
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.tracking._model_registry.registry import ModelRegistryStoreRegistry
from mlflow.tracking._tracking_service.utils import _tracking_store_registry as stores

from conf.errors import UnreachableError, UserError
from conf.schema import TrackingConfig

logging.getLogger("alembic").setLevel(logging.WARNING)  # the first use of a database migrates it, line by line
logging.getLogger("mlflow.store.db").setLevel(logging.CRITICAL)  # what fails is told here, without a traceback
databases.MAX_RETRY_COUNT = 1  # it would sleep for 100 seconds over a database that cannot be opened

_SET_BY_USER = frozenset(os.environ)


def embedded_uri(runs_dir: Path) -> str:
    """The database that stands in where no other is named."""
    return f"sqlite:///{runs_dir / 'mlflow.db'}"


def tracking_uri(config: TrackingConfig, runs_dir: Path) -> str:
    """Where MLflow is: what is configured, else `MLFLOW_TRACKING_URI`, else the embedded database."""
    return config.uri or os.environ.get("MLFLOW_TRACKING_URI") or embedded_uri(runs_dir)


@contextmanager
def requests_within(seconds: int) -> Iterator[None]:
    """Ask a server that does not answer twice for so long; by itself MLflow does it for minutes."""
    limits = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": str(seconds)}
    with patch.dict(os.environ, {name: value for name, value in limits.items() if name not in _SET_BY_USER}):
        yield


def make_database(path: Path) -> None:
    """Make the embedded database under another name: a process that is killed would leave half of it for good."""
    if not path.exists():
        draft = path.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        MlflowClient(tracking_uri=f"sqlite:///{draft}").search_experiments(max_results=1)
        forget_database(f"sqlite:///{draft}")
        draft.replace(path)


def forget_database(uri: str) -> None:
    """MLflow keeps its connections for the life of the process, also those to a file that is gone by now."""
    for store in (SqlAlchemyStore, RegistryStore):
        engine = store._engine_map.pop(uri, None)
        if engine is not None:
            engine.dispose()
    stores._get_store_with_resolved_uri.cache_clear()
    ModelRegistryStoreRegistry._get_store_with_resolved_uri.cache_clear()


def complaint(error: Exception, text: str) -> UserError:
    """What to tell of a failure: an outage, unless MLflow has answered that it will not do this."""
    refused = isinstance(error, MlflowException) and error.get_http_status_code() in (400, 401, 403)
    return UserError(text) if refused else UnreachableError(text)


def first_line(error: Exception) -> str:
    """What went wrong; of a failed request its cause, without the request."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line.rpartition("(Caused by ")[2].removesuffix(")") if "(Caused by " in line else line
