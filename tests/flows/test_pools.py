"""The README's examples for Slurm and Kubernetes, as far as they can be run where there is neither."""

import json
import os
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.flows.sweeping import ALONE, Project
from tests.flows.sweeping import project as project
from tests.flows.test_together import eventually
from tests.test_readme import ROOT, blocks


def example(language: str, title: str) -> str:
    """A titled block of the README."""
    return dict(blocks(language))[title]


def test_prefect_takes_the_template_for_kubernetes(prefect_server: None):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.utilities.templating import apply_values

    template = json.loads(example("json", "kubernetes.json"))
    with get_client(sync_client=True) as client:  # the server refuses a variable that is not declared
        client.create_work_pool(WorkPoolCreate(name="k8s", type="kubernetes", base_job_template=template))
        kept = client.read_work_pool("k8s").base_job_template
    values = {name: each.get("default", name) for name, each in kept["variables"]["properties"].items()}
    values |= {"env": {"A": "1"}, "labels": {"b": "2"}}
    made: Any = apply_values(kept["job_configuration"], values)
    assert "{{" not in json.dumps(made)
    (container,) = made["job_manifest"]["spec"]["template"]["spec"]["containers"]
    assert (container["args"], container["env"], container["image"]) == ("command", {"A": "1"}, "ratchet:latest")
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert set(made) <= set(prefects_own()) and set(made["job_manifest"]) == set(prefects_own()["job_manifest"])


def prefects_own() -> dict[str, Any]:
    """The job configuration that Prefect itself has for Kubernetes."""
    path = files("prefect") / "server/api/collections_data/views/aggregate-worker-metadata.json"
    known = json.loads(path.read_text())["prefect-kubernetes"]["kubernetes"]
    own: dict[str, Any] = known["default_base_job_configuration"]["job_configuration"]
    return own


@pytest.mark.slow
def test_the_script_for_slurm_runs_what_is_deployed_to_its_pool(project: Project):
    """Slurm's part is played by this test: it sets the directory, and sends the signal when the time is up."""
    from prefect.settings import PREFECT_API_URL

    url = str(PREFECT_API_URL.value())
    bin_folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PREFECT_API_URL": url,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "SLURM_SUBMIT_DIR": str(project.folder),
    }
    made = ["prefect", "work-pool", "create", "slurm", "--type", "process"]
    subprocess.run([sys.executable, "-m", *made], env=environment, check=True, stdout=subprocess.DEVNULL)
    deploy_and_start("slurm", project.folder)
    (project.folder / "worker.sbatch").write_text(example("sh", "worker.sbatch"))
    log = project.folder / "worker.txt"
    with log.open("w") as output:
        job = subprocess.Popen(
            ["bash", str(project.folder / "worker.sbatch")], cwd="/", env=environment, stdout=output, stderr=output
        )
    try:
        eventually(lambda: [each["state"] for each in project.records()] == ["completed"], 300)
        job.send_signal(signal.SIGTERM)
        job.wait(180)
    finally:
        job.kill()
        job.wait()
    (record,) = project.records()
    assert record["directory"] == str(project.folder) and record["prefect_url"] == url
    assert "Worker 'ProcessWorker" in log.read_text()


def deploy_and_start(pool: str, folder: Path) -> None:
    """Deploy a short pipeline to a pool, and have one run of it due now."""
    from prefect.client.orchestration import get_client
    from prefect.deployments.runner import RunnerDeployment
    from prefect.runner.storage import LocalStorage
    from prefect.types.entrypoint import EntrypointType

    from conf.loader import dump
    from flows.compose import compose_run
    from flows.posttrain import posttrain

    config = dump(compose_run(ALONE).sections)
    made = RunnerDeployment.from_flow(
        posttrain, name=pool, parameters={"config": config}, entrypoint_type=EntrypointType.MODULE_PATH
    )
    made.storage = LocalStorage(str(folder))
    deployment = made.apply(work_pool_name=pool)
    with get_client(sync_client=True) as client:
        client.create_flow_run_from_deployment(deployment)
