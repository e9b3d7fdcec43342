"""What a worker of a Ray cluster says when it is no place for a cell, and what it takes over when it is one."""

import os
from pathlib import Path
from typing import Any

import pytest

from conf.run import RunConfig
from flows.compose import compose_run
from flows.workers.ray_cluster import RayWorkers, resources, worker_environment
from flows.workers.ray_worker import settle, versions
from flows.workspace import Workspace

SMOKE = ["experiment=smoke"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Where this very process is at home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "before")
    (tmp_path / "mark").touch()
    return {
        "environment": {"HF_TOKEN": "told"},
        "directory": str(tmp_path),
        "files": [str(tmp_path / "mark")],
        "servers": {},
        "versions": versions(),
    }


def test_a_worker_takes_over_environment_and_directory(place: dict[str, Any], tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert settle(place) is None
    assert (os.environ["HF_TOKEN"], str(Path.cwd())) == ("told", place["directory"])


def test_what_looks_like_a_secret_travels_apart_from_what_ray_writes_down(monkeypatch):
    from prefect.settings import PREFECT_API_URL, temporary_settings

    secrets = {
        "MLFLOW_DB_PWD": "hunter2",
        "MLFLOW_API_KEY": "0123",
        "HF_TOKEN": "hf_0123",
        "PREFECT_API_AUTH_STRING": "admin:admin",
        "MLFLOW_TRACKING_URI": "http://user:password@host",
    }
    for name, value in {**secrets, "MLFLOW_S3_ENDPOINT_URL": "http://host", "SOME_TOKEN": "stays here"}.items():
        monkeypatch.setenv(name, value)
    with temporary_settings({PREFECT_API_URL: "http://host:4200/api"}):
        public, secret = worker_environment(compose_run(SMOKE))
    assert {name: secret.get(name) for name in secrets} == secrets
    assert public["PREFECT_API_URL"] == "http://host:4200/api"
    assert public["MLFLOW_S3_ENDPOINT_URL"] == "http://host"
    assert "SOME_TOKEN" not in {**public, **secret} and not public.keys() & secret.keys()


@pytest.mark.parametrize(
    ("what", "wrong", "says"),
    [
        ("versions", {"torch": "1.0"}, "and not 1.0 as here; install the same there"),
        ("versions", {"the code of the stages": "abc"}, "has the code of the stages "),
        ("files", ["/nowhere/runs"], "does not see /nowhere/runs; the project and runs_dir must be on a file system"),
        ("servers", {"MLflow": "http://127.0.0.1:{}"}, "does not reach MLflow at 127.0.0.1:"),
    ],
    ids=["version", "code", "files", "server"],
)
def test_a_worker_that_is_no_place_for_a_cell_says_why(
    place: dict[str, Any], dead_port: int, what: str, wrong: Any, says: str
):
    if what == "servers":
        wrong = {name: url.format(dead_port) for name, url in wrong.items()}
    problem = settle({**place, what: wrong})
    assert problem is not None and problem.startswith("the Ray node ") and says in problem


def on(*overrides: str) -> tuple[RunConfig, Workspace]:
    config = compose_run([*SMOKE, *overrides])
    return config, Workspace(config)


@pytest.mark.parametrize(
    ("overrides", "cpus", "gpus"),
    [
        (["hardware.threads=3"], 3, 0),
        (["hardware.ray.num_cpus=2"], 2, 0),
        (["hardware.ray.num_cpus=4", "hardware.threads=3"], 4, 0),
        (["hardware.device=cuda", "hardware.dtype=bfloat16"], 1, 1),
        (["hardware.device=cuda", "hardware.dtype=bfloat16", "hardware.ray={num_gpus: 2, num_cpus: 8}"], 8, 2),
    ],
    ids=["threads", "cpus", "both", "gpu", "gpus"],
)
def test_a_cell_takes_what_its_hardware_says(tmp_path, monkeypatch, overrides: list[str], cpus: int, gpus: int):
    monkeypatch.setenv("RATCHET_RUNS_DIR", str(tmp_path))
    assert resources(*on(*overrides)) == {"num_cpus": cpus, "num_gpus": gpus}


def test_a_worker_computes_with_the_threads_that_were_counted_on_here(tmp_path, monkeypatch):
    """So what is cached is the same for who sends cells and for who runs them."""
    from conf.loader import dump
    from conf.run import load_run

    monkeypatch.setenv("RATCHET_RUNS_DIR", str(tmp_path))
    config, here = on("hardware.ray.num_cpus=3", "orchestration.runner=ray")
    workers = RayWorkers(1, {}, {})
    there = Workspace(load_run(workers.message({"config": dump(config.sections)})["config"]))
    assert there.hardware == here.hardware and there.hardware.threads == 3
    assert there.config.sections.orchestration.runner.name == "processes"
