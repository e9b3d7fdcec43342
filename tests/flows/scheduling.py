"""A Prefect server that keeps schedules, its workers, and a small project whose pipelines are deployed there."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.flows.servers import Server

LIMIT = 400
"""Seconds after which something has not happened."""

STEPS = 400

_SMALL = f"""# @package _global_
defaults:
  - override /model: tiny
name: small
pipeline:
  sft: {{stage: sft, start: base, data: asked}}
data:
  asked: {{source: asked.jsonl, prompt: ask, response: say, reference: say}}
reward:
  exact: {{exact: {{type: exact}}}}
suite:
  task: {{data: asked, reward: exact, max_new_tokens: 4}}
hardware: {{threads: 1}}
sft: {{max_steps: {STEPS}, save_steps: 10, batch_size: 8, n_samples: 0, learning_rate: 2e-2}}
"""

_HELD = """# @package _global_
# The gate looks at a base that does worse than what was trained.
defaults:
  - small
name: held
pipeline:
  gate: {stage: gate, start: base, baseline: sft}
sft: {max_steps: 30}
"""


def write_project(folder: Path) -> None:
    """Write the experiments `small`, whose training takes some seconds, and `held`, whose gate says hold."""
    (folder / "conf" / "experiment").mkdir(parents=True)
    (folder / "conf" / "experiment" / "small.yaml").write_text(_SMALL)
    (folder / "conf" / "experiment" / "held.yaml").write_text(_HELD)
    rows = [{"ask": f"{color} {n}?", "say": "yes"} for color in ("red", "blue", "green", "pink") for n in range(60)]
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


class Scheduler:
    """A whole Prefect server with a home of its own.

    Args:
        folder: Where it lives.
    """

    def __init__(self, folder: Path) -> None:
        self.home = folder / "prefect"
        self._folder = folder
        self.environment = {
            "PREFECT_HOME": str(self.home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "3",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
        }
        command = "prefect server start --host 127.0.0.1 --port {port} --no-ui"
        self.server = Server(folder, command, self.environment)
        self.environment["PREFECT_API_URL"] = f"{self.server.url}/api"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.server.start("/api/health")

    @contextmanager
    def settings(self) -> Iterator[None]:
        """In this process, Prefect is this server."""
        from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

        with temporary_settings({PREFECT_API_URL: self.environment["PREFECT_API_URL"], PREFECT_HOME: self.home}):
            yield

    @contextmanager
    def worker(self, pool: str = "ratchet") -> Iterator["Process"]:
        """A worker of a pool, killed in the end."""
        arguments = ["-m", "prefect", "worker", "start", "--pool", pool]
        worker = Process(arguments, self.environment, self._folder)
        try:
            yield worker
        finally:
            worker.kill()


def make_bare_pool(name: str) -> None:
    """Make a work pool of processes that hands no environment to them."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    template = {
        "job_configuration": {"command": "{{ command }}"},
        "variables": {"type": "object", "properties": {"command": {"type": "string"}}},
    }
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template))


class Process:
    """A Python process; what it prints goes to `output`."""

    _count = 0

    def __init__(self, arguments: list[str], environment: dict[str, str | None], folder: Path) -> None:
        Process._count += 1
        self.output = folder / f"process-{Process._count}.txt"
        merged = {**os.environ, **environment}
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                env={name: value for name, value in merged.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        """What it has printed."""
        return self.output.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self._process.pid, number)

    def wait(self) -> int:
        """Its exit code."""
        return self._process.wait(LIMIT)

    def kill(self) -> None:
        """End it at once, if it is not over."""
        self._process.kill()
        self._process.wait()


class Run:
    """A run of a deployment, as the server has it.

    Args:
        id: Prefect's id of it.
    """

    def __init__(self, id: Any) -> None:
        self.id = id

    @classmethod
    def of(cls, deployment: dict[str, Any], **parameters: Any) -> "Run":
        """A run that is due now."""
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            return cls(client.create_flow_run_from_deployment(deployment["id"], parameters=parameters).id)

    @property
    def now(self) -> Any:
        """The server's flow run."""
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            return client.read_flow_run(self.id)

    def set(self, state: Any, force: bool = False) -> None:
        """Set its state, as a worker, a process or a person would."""
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            client.set_flow_run_state(self.id, state, force=force)

    def history(self) -> list[Any]:
        """All its states, in order."""
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            return sorted(client.read_flow_run_states(self.id), key=lambda state: state.timestamp)

    def states(self) -> list[str]:
        """Their names."""
        return [str(state.name) for state in self.history()]

    def show(self, what: str) -> None:
        """Print them with their times, each once in a row, for whoever reads the test's output."""
        print(f"{what} ({self.now.name})")
        for name, states in groupby(self.history(), key=lambda state: state.name):
            first = next(states)
            print(f"  {first.timestamp:%H:%M:%S}  {name:24}{(first.message or '').partition('. ')[0]}".rstrip())

    def wait_for(self, name: str) -> None:
        """Until it has been in a state of that name."""
        wait_until(lambda: name in self.states(), lambda: f"{name}: {self.states()} {self.now.state.message}")

    def records(self, project: Path) -> list[dict[str, Any]]:
        """What Ratchet has of its attempts, the earliest first."""
        from flows.references import pipeline_records

        return [each for each in pipeline_records(project / "runs") if each["prefect_run"] == str(self.id)]

    def freeze(self, project: Path, rows: int) -> int:
        """Stop its process as soon as it has trained for some steps; returns the process."""
        wait_until(lambda: self._trained(project) >= rows)
        pid = int(self.records(project)[-1]["pid"])
        os.kill(pid, signal.SIGSTOP)
        assert self.records(project)[-1]["state"] == "running"
        return pid

    def _trained(self, project: Path) -> int:
        """How many rows its training has logged."""
        stored = [record["steps"]["sft"]["store"] for record in self.records(project)]
        path = project / "runs" / "store" / str(stored[-1] if stored else None) / "progress.jsonl"
        return len(path.read_bytes().splitlines()) if path.exists() else 0


def wait_until(happened: Callable[[], object], why: Callable[[], str] = lambda: "") -> None:
    """Until something has happened."""
    deadline = time.monotonic() + LIMIT
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(why())
        time.sleep(0.05)
