"""Cells on a Ray cluster that exists already: connect, see that its nodes can run them, and send them there.

Ray runs a cell again whose worker or node died, on another one; the cell goes on from its checkpoint in the store. What
a worker needs of our environment travels with the cells. Ray keeps the variables of a runtime environment in its logs,
so secrets are not among those.
"""

import importlib.util
import os
import socket
import sys
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import UserError
from conf.hardware import Device, Dtype
from conf.run import RunConfig, load_run
from conf.sweep import Runner
from flows.environment import DEFAULTS
from flows.secrets import secrets_of
from flows.workspace import Workspace
from stages import gpus

_PASSED_ON = ("RATCHET_", "MLFLOW_", "HF_", "PREFECT_API_")
_RETRIES = 3
"""How often Ray runs a cell again whose worker or node died."""
_CONNECT_SECONDS, _NODE_SECONDS = 5, 180


@dataclass(frozen=True)
class RayWorkers:
    """The workers of a cluster that we are connected to (see `runners.Workers`); all cells take equally much."""

    count: int
    options: Mapping[str, Any]
    place: Mapping[str, Any]

    @property
    def beside(self) -> int:
        """How many beside what this process does itself, for which Ray keeps no place."""
        return self.count

    def make_runner(self, workers: int) -> Any:
        """A task runner, to be entered; Ray itself bounds what runs at once."""
        from flows.workers.ray_runner import CellRunner

        return CellRunner(self.options)

    def message(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        """A cell as a worker is to run it: on its own machine, and on such hardware as `auto` means on ours."""
        config = cell["config"]
        hardware = Workspace(load_run(config)).hardware
        known = {"device": hardware.device, "dtype": hardware.dtype, "threads": hardware.threads}
        config = {
            **config,
            "hardware": {**config["hardware"], **known},
            "orchestration": {**config["orchestration"], "runner": Runner.processes.name},
        }
        return {**cell, "config": config, "place": self.place}


def check_ray(config: RunConfig) -> None:
    """See that there is a Ray to talk to, without loading it.

    Raises:
        UserError: The extra is not installed, the address is for Ray's client, or nobody listens there.
    """
    if importlib.util.find_spec("prefect_ray") is None:
        raise UserError('orchestration.runner: ray needs another package: pip install "ratchet[ray]"')
    address = _address(config)
    if "://" in address:
        raise UserError(
            f"orchestration.ray.address: {address} is for Ray's client; start the sweep on a node of the cluster, and "
            "give HOST:PORT of its head, or auto"
        )
    if address != "auto":
        where = urllib.parse.urlsplit(f"//{address}")
        try:
            socket.create_connection((str(where.hostname), where.port or 6379), timeout=_CONNECT_SECONDS).close()
        except (OSError, ValueError) as error:
            raise _no_cluster(address, error) from error


@contextmanager
def ray_workers(config: RunConfig) -> Iterator[RayWorkers]:
    """Be connected to the cluster; what Ray has to say goes to standard error.

    Raises:
        UserError: There is no such cluster, or one of its nodes that has room for a cell cannot run it.
    """
    import ray

    from flows.prefect_server import shared_server, start_server

    workspace = Workspace(config)
    start_server()
    with redirect_stdout(sys.stderr), shared_server():
        public, secret = worker_environment(config)
        try:
            ray.init(
                address=_address(config),
                namespace="prefect",
                runtime_env={"env_vars": public},
                log_to_driver=False,
                logging_level="ERROR",
            )
        except Exception as error:
            raise _no_cluster(_address(config), error) from error
        try:
            with _place(workspace, secret) as place:
                options = resources(config, workspace)
                count = _check_nodes(options, place)
                count = config.sections.orchestration.max_workers or count
                yield RayWorkers(count, {**options, "max_retries": _RETRIES}, place)
        finally:
            ray.shutdown()


def resources(config: RunConfig, workspace: Workspace) -> dict[str, int]:
    """What one cell takes of the cluster.

    Raises:
        UserError: It takes a GPU, and none here says what `auto` means there.
    """
    hardware, asked = config.sections.hardware, config.sections.hardware.ray
    each = int(workspace.hardware.device == "cuda") * workspace.training_hardware.num_processes
    wanted = each if asked.num_gpus is None else asked.num_gpus
    if wanted and not gpus.visible() and (hardware.device is Device.auto or hardware.dtype is Dtype.auto):
        raise UserError(
            "hardware: this machine has no GPU by which to know what `auto` means on those of the cluster; say it, "
            "e.g. hardware.device=cuda hardware.dtype=bfloat16"
        )
    cpus = asked.num_cpus or hardware.threads or (1 if wanted else workspace.hardware.threads)
    return {"num_cpus": cpus, "num_gpus": wanted}


def _address(config: RunConfig) -> str:
    return config.sections.orchestration.ray.address or os.environ.get("RAY_ADDRESS") or "auto"


def _no_cluster(address: str, error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return UserError(
        f"orchestration.ray.address: no Ray cluster that we can use at {address} ({reason}); start one (ray start "
        "--head), or name another"
    )


def worker_environment(config: RunConfig) -> tuple[dict[str, str], dict[str, str]]:
    """The variables that workers get, and those of them that may appear nowhere."""
    from prefect.settings import PREFECT_API_URL

    keys = {suite.judge.api_key_env for suite in config.suites.values() if suite.judge and suite.judge.api_key_env}
    found = {name: os.environ[name] for name in DEFAULTS if name in os.environ}
    found |= {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON) or name in keys}
    found["PREFECT_API_URL"] = PREFECT_API_URL.value()
    secret = {name: value for name, value in found.items() if name in keys or secrets_of(name, value)}
    return {name: value for name, value in found.items() if name not in secret}, secret


@contextmanager
def _place(workspace: Workspace, environment: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """What a worker must have in common with us, so as long as it lasts a file in the runs directory."""
    from flows.mlflow_connection import tracking_uri
    from flows.prefect_server import server_name
    from flows.workers.ray_worker import versions

    mark = workspace.runs_dir / f".{socket.gethostname()}-{os.getpid()}"
    mark.touch()
    servers = {server_name().partition(" at ")[0]: os.environ.get("PREFECT_API_URL", "")}
    uri = tracking_uri(workspace.config.sections.tracking, workspace.runs_dir)
    if uri.startswith("http"):
        servers["MLflow"] = uri
    try:
        yield {
            "environment": environment,
            "directory": str(Path.cwd()),
            "files": [str(Path.cwd()), str(mark)],
            "servers": servers,
            "versions": versions(),
        }
    finally:
        with suppress(OSError):
            mark.unlink()


def _check_nodes(options: Mapping[str, int], place: Mapping[str, Any]) -> int:
    """Ask every node that has room for a cell whether it could run one; returns for how many there is room.

    Raises:
        UserError: One cannot, or none has room.
    """
    import ray

    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"] and _room(node, options)}
    if not nodes:
        raise UserError(
            f"hardware.ray: no node of the cluster has {options['num_cpus']} CPUs and {options['num_gpus']} GPUs; ask "
            "for less (hardware.ray.num_cpus, hardware.threads, hardware.ray.num_gpus)"
        )
    asked = {_ask(node, place): node for node in nodes}
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_NODE_SECONDS)
    for answer, node in asked.items():
        name = f"the Ray node {nodes[node]['NodeManagerHostname']}"
        if answer not in answered:
            raise UserError(f"{name} has not answered for {_NODE_SECONDS} seconds; see `ray status`")
        try:
            problem = ray.get(answer)
        except Exception as error:
            why = str(error).strip().splitlines()[-1]
            raise UserError(f"{name} cannot run Ratchet ({why}); install the same version there") from error
        if problem:
            raise UserError(problem)
    return sum(_room(node, options) for node in nodes.values())


def _ask(node: str, place: Mapping[str, Any]) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from flows.workers.ray_worker import settle

    there = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(settle).remote(place)


def _room(node: Mapping[str, Any], options: Mapping[str, int]) -> int:
    """For how many cells a node has room."""
    there = {"num_cpus": node["Resources"].get("CPU", 0), "num_gpus": node["Resources"].get("GPU", 0)}
    return int(min(there[name] // needed for name, needed in options.items() if needed))
