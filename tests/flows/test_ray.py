"""A sweep on a real Ray cluster of two nodes on this machine, of which one is lost on the way."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.liveness import is_alive
from flows.progress_log import read_progress
from flows.sweeps.record import sweep_records
from tests.flows.sweeping import ALONE, Project, two_cores
from tests.flows.sweeping import project as project
from tests.flows.test_branches import TWO
from tests.flows.test_together import eventually

pytest.importorskip("prefect_ray", reason="ray is not installed")
pytestmark = pytest.mark.slow

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
SECRET = "s3cret-of-the-test"
SHORT = [override.replace("100000", "4") for override in TWO]
ROOT = Path(__file__).parents[2]


class TwoNodes:
    """The cluster: a head and another node, with one CPU each."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={**NODE, "include_dashboard": False, "temp_dir": str(folder)},
        )
        self.head, self.other = self._cluster.head_node, self._cluster.add_node(**NODE)
        self.address = str(self._cluster.address)
        self.folder = folder

    def processes(self, node: Any) -> list[psutil.Process]:
        """The workers of a node, and whatever they have started."""
        raylet = node.all_processes["raylet"][0].process
        return psutil.Process(raylet.pid).children(recursive=True)

    def lose(self) -> None:
        """End everything on the other node at once, as when its power fails."""
        for process in self.processes(self.other):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._cluster.remove_node(self.other, allow_graceful=False)

    def close(self) -> None:
        """End the cluster."""
        self._cluster.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    """The cluster; its nodes have nothing in their environment that workers must be told."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("RATCHET_", "PREFECT_", "MLFLOW_"))]:
            patch.delenv(name)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        nodes = TwoNodes(Path("/tmp") / f"ray-{os.getpid()}")
    yield nodes
    nodes.close()


@two_cores
def test_cells_of_a_lost_node_run_again_on_the_other(nodes: TwoNodes, project: Project):
    log = project.folder / "log.txt"
    sweep = started(project, log, f"orchestration.ray.address={nodes.address}")

    def long_ones() -> list[dict[str, Any]]:
        """The two long cells, once they have written down some steps, and so finished some checkpoints."""
        assert sweep.poll() is None, log.read_text()
        running = [each for each in project.records() if each["state"] == "running"]
        running = [each for each in running if each["config"]["sft"]["max_steps"] == 150]
        return [each for each in running if steps(each) > 3]

    def steps(record: dict[str, Any]) -> int:
        entry = project.runs / "store" / str(record["steps"]["sft"]["store"])
        return len(read_progress(entry / "progress.jsonl"))

    eventually(lambda: len(long_ones()) == 2, 300)
    check_workers(nodes)
    there = {process.pid for process in nodes.processes(nodes.other)}
    (lost,) = [record for record in long_ones() if record["pid"] in there]
    nodes.lose()
    out, _ = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, log.read_text()
    assert [cell["state"] for cell in json.loads(out)["cells"]] == ["completed"] * 4
    (record,) = sweep_records(project.runs)
    assert [cell["state"] for cell in record["cells"].values()] == ["completed"] * 4
    check_second_attempt(project, lost)


def test_cells_end_with_a_sweep_that_is_killed(nodes: TwoNodes, project: Project):
    log = project.folder / "log.txt"
    sweep = started(project, log, f"orchestration.ray.address={nodes.address}")
    eventually(lambda: list(project.runs.glob("store/sft-*/checkpoints/step-*[3-9]")), 300)  # of a long one
    cells = [project.runs / "pipelines" / each["id"] for each in project.records() if each["state"] == "running"]
    assert cells and all(map(is_alive, cells)), log.read_text()
    sweep.kill()
    sweep.communicate()
    eventually(lambda: not any(map(is_alive, cells)))


def test_a_branch_of_a_pipeline_goes_to_the_cluster(nodes: TwoNodes, project: Project):
    log = project.folder / "log.txt"
    ray = ["orchestration.branches=true", "orchestration.runner=ray", f"orchestration.ray.address={nodes.address}"]
    with log.open("w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "flows", "run", *SHORT, *ray],
            cwd=project.folder,
            env=environment(),
            stdout=output,
            stderr=output,
            timeout=300,
        )
    assert done.returncode == 0, log.read_text()
    helper, run = sorted(project.records(), key=lambda record: record["sweep"] is None)
    assert run["state"] == helper["state"] == "completed" and list(helper["steps"]) == ["sft", "other"]
    assert helper["sweep"]["id"] == run["id"] and "other: begun beside it" in log.read_text()


def test_a_cluster_without_room_is_refused(nodes: TwoNodes, project: Project):
    log = project.folder / "log.txt"
    sweep = started(project, log, f"orchestration.ray.address={nodes.address}", "hardware.ray.num_cpus=99")
    sweep.communicate(timeout=300)
    said = log.read_text().splitlines()
    assert sweep.returncode == 2 and len(said) == 1, said
    assert "hardware.ray: no node of the cluster has 99 CPUs and 0 GPUs; ask for less" in said[0]
    assert not (project.runs / "sweeps").exists()


def started(project: Project, log: Path, *overrides: str) -> "subprocess.Popen[str]":
    """A sweep in a process of its own: two short cells, then two long ones."""
    options = ["sft.max_steps=2,150", "seed=1,2", "orchestration.runner=ray", *overrides]
    with log.open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "flows", "run", "-m", "--json", *ALONE, *options],
            cwd=project.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def environment() -> dict[str, str]:
    """That of a process that sends cells."""
    from prefect.settings import PREFECT_API_URL

    ours = {"PREFECT_API_URL": str(PREFECT_API_URL.value()), "MLFLOW_TRACKING_PASSWORD": SECRET}
    return {**os.environ, "PYTHONPATH": str(ROOT), **ours}


def check_workers(nodes: TwoNodes) -> None:
    """They use the server they were told of, and nothing that Ray has written down has a secret."""
    commands = [" ".join(each.cmdline()) for node in (nodes.head, nodes.other) for each in nodes.processes(node)]
    assert len(commands) >= 2 and not any("prefect.server" in command for command in commands), commands
    logs = [path for path in nodes.folder.rglob("*") if path.is_file()]
    assert logs and not any(SECRET.encode() in path.read_bytes() for path in logs)


def check_second_attempt(project: Project, lost: dict[str, Any]) -> None:
    """The lost cell was begun once more, on the other node, and went on after its last checkpoint."""
    attempts = [each for each in project.records() if each["sweep"]["number"] == lost["sweep"]["number"]]
    assert [each["state"] for each in attempts] == ["interrupted", "completed"]
    assert attempts[0]["id"] == lost["id"] and attempts[0]["pid"] != attempts[1]["pid"]
    (output,) = project.runs.glob(f"sweeps/*/cells/{lost['sweep']['number']}.txt")
    assert re.search(r"goes on after step [1-9]", output.read_text()), output.read_text()
