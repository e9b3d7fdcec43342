"""One attempt of a run of a deployment, as a worker's process makes it: outages, signals, bad input."""

import signal
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from flows.schedules.deployments import Request, deploy, remove
from flows.schedules.scheduled import OUTAGE
from tests.flows.forking import Forker, Handle
from tests.flows.scheduling import Run


class Attempts:
    """Attempts of runs of a project's deployments."""

    def __init__(self, forker: Forker, folder: Path) -> None:
        self._forker, self._folder = forker, folder

    def run(self, *overrides: str) -> Run:
        """A run that is due now; what could be found wrong is not looked for when it is deployed."""
        settings: dict[str, Any] = {"config_dir": None, "cron": "0 2 * * *", "timezone": "UTC", "on_overlap": "wait"}
        asked = ["experiment=small", "sft.max_steps=2", *overrides]
        return Run.of(deploy(Request(name="small", overrides=asked, retries=1, **settings), None, {}))

    def begin(self, run: Run) -> Handle:
        """The process of its next attempt."""
        from prefect.states import Pending

        run.set(Pending())
        return self._forker.start_flow_run(run.id, self._folder / "prefect", self._folder / "log.txt")

    def make(self, run: Run) -> Any:
        """Its state after the next attempt."""
        code = self.begin(run).wait()
        assert code == 0, (self._folder / "log.txt").read_text()
        return run.now.state


@pytest.fixture
def attempts(forker: Forker, small_project: Path) -> Iterator[Attempts]:
    from prefect.settings import PREFECT_HOME, temporary_settings

    with temporary_settings({PREFECT_HOME: small_project / "prefect"}):
        yield Attempts(forker, small_project)
        assert remove("small")


NEEDED = {
    "champion": ("pipeline.sft.start=champion", "pipeline.sft: registry: cannot ask MLflow at {} what has shipped"),
    "tracking": ("tracking.required=true", "tracking.uri: cannot use MLflow at {}"),
}


@pytest.mark.parametrize(("override", "message"), NEEDED.values(), ids=NEEDED)
def test_what_meets_with_an_outage_is_tried_again_soon(override, message, attempts, dead_port):
    uri = f"http://127.0.0.1:{dead_port}"
    run = attempts.run(override, f"tracking.uri={uri}")
    before = datetime.now(UTC)
    state = attempts.make(run)
    after = datetime.now(UTC)
    assert (state.type, state.name) == ("SCHEDULED", OUTAGE)
    assert message.format(uri) in state.message
    assert before <= state.state_details.scheduled_time - timedelta(minutes=1) <= after


def test_an_outage_is_not_waited_for_without_end(attempts, dead_port):
    from prefect.states import Scheduled

    run = attempts.run(f"tracking.uri=http://127.0.0.1:{dead_port}")
    for _ in range(27):
        run.set(Scheduled(name=OUTAGE), force=True)
    state = attempts.make(run)
    assert state.is_failed() and state.message.startswith("Not tried again, after 6 hours: tracking.uri: cannot use")
    run.set(Scheduled(), force=True)  # by hand, on the next morning
    assert attempts.make(run).name == OUTAGE


def test_what_mlflow_refuses_is_no_outage(attempts):
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(403)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        run = attempts.run(f"tracking.uri=http://127.0.0.1:{server.server_port}")
        state = attempts.make(run)
        server.shutdown()
    assert state.is_failed() and state.message.startswith("Not tried again: tracking.uri: cannot use MLflow")


def test_bad_input_is_failed_at_once(attempts):
    state = attempts.make(attempts.run("data.asked.source=nowhere.jsonl"))
    assert state.is_failed() and state.message.startswith("Not tried again: ") and "nowhere.jsonl" in state.message


def test_a_run_that_is_interrupted_before_it_has_begun_goes_on(attempts):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        run = attempts.run(f"tracking.uri=http://127.0.0.1:{silent.getsockname()[1]}")
        process = attempts.begin(run)
        silent.settimeout(200)
        connection, _ = silent.accept()
        process.kill(signal.SIGTERM)
        process.wait()
        connection.close()
    assert run.states()[-2:] == ["Running", "AwaitingRetry"]
    assert run.now.state.message == "Interrupted by SIGTERM; goes on from what is in the store."
