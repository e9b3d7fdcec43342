"""Steps of one pipeline that do not wait for each other, side by side."""

import signal

import pytest

from flows.cli import main
from flows.compose import compose_run
from flows.workers.branches import as_far_as
from tests.flows.forking import Forker
from tests.flows.sweeping import Project, two_cores
from tests.flows.sweeping import project as project
from tests.flows.test_together import eventually

TWO = [
    "experiment=asked",
    "~pipeline.reinforce",
    "+pipeline.own={stage: sft, start: sft, data: asked, set: {max_steps: 100000}}",
    "+pipeline.other={stage: sft, start: sft, data: asked, set: {max_steps: 40}}",
]
"""`sft`, and then two that start from it, of which the first is not to come to its end."""
BESIDE = ["orchestration.branches=true", "orchestration.max_workers=2"]


@two_cores
@pytest.mark.slow
def test_while_the_flow_does_one_branch_a_worker_makes_the_other(forker: Forker, project: Project):
    log = project.folder / "log.txt"
    flow = forker.start(["run", *TWO, *BESIDE], log)
    eventually(lambda: [record for record in project.records() if record["state"] == "completed"], 300)
    flow.kill(signal.SIGTERM)
    assert flow.wait() == 143, log.read_text()
    helper, run = sorted(project.records(), key=lambda record: record["sweep"] is None)
    assert helper["sweep"]["id"] == run["id"] and helper["pid"] != run["pid"]
    assert {name: step["state"] for name, step in helper["steps"].items()} == {"sft": "cached", "other": "completed"}
    assert (run["steps"]["own"]["state"], run["steps"]["other"]["state"]) == ("interrupted", "skipped")
    assert main(["run", *TWO, "~pipeline.own"]) == 0
    assert project.records()[-1]["steps"]["other"]["state"] == "cached"


def test_a_pipeline_is_cut_where_a_branch_ends(project: Project):
    config = compose_run(TWO)
    assert list(as_far_as(config, "other").steps) == ["sft", "other"]
    whole = compose_run(["experiment=asked"])
    assert list(as_far_as(whole, "reinforce").steps) == list(whole.steps)
