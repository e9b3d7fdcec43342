"""Tracking that cannot be had is one clear line, soon."""

import time

import pytest

from conf.errors import UserError
from conf.schema import TrackingConfig
from flows.tracking import Tracker


@pytest.mark.parametrize("uri", ["http://127.0.0.1:{}", "postgresql://host/name"], ids=["server", "database"])
def test_what_cannot_be_used_is_refused_soon(uri, dead_port, tmp_path):
    uri = uri.format(dead_port)
    started = time.monotonic()
    with pytest.raises(UserError, match=f"tracking.uri: cannot use MLflow at {uri}") as caught:
        Tracker(TrackingConfig(uri=uri), tmp_path)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < 60  # MLflow by itself tries for minutes


def test_half_a_database_of_a_killed_process_does_no_harm(tmp_path):
    (tmp_path / "mlflow.draft").write_bytes(b"SQLite format 3")
    Tracker(TrackingConfig(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mlflow.lock", "mlflow.db"]
