"""`ratchet deploy` without a worker: what is refused, what stands on the server, and what a run may ask for."""

import json
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from conf.errors import ConfigError, UserError
from flows.cli import main
from tests.flows.scheduling import make_bare_pool, write_project

CRON = ("--cron", "0 2 * * *")
NIGHT = ("deploy", "experiment=small", *CRON)


@pytest.fixture
def project(prefect_server: None, small_project: Path) -> Iterator[Path]:
    """A project as the current directory, with Prefect's home in it."""
    from prefect.settings import PREFECT_HOME, temporary_settings

    with temporary_settings({PREFECT_HOME: small_project / "prefect"}):
        yield small_project


REFUSED = [
    ((*NIGHT, "sft.max_stepps=3"), "sft.max_stepps: unknown key; did you mean 'max_steps'?"),
    ((*NIGHT, "data.asked.source=nowhere.jsonl"), "nowhere.jsonl"),
    (("deploy", "experiment=small", "--cron", "at two"), "--cron: 'at two' cannot be read"),
    (("deploy", "experiment=small", "--cron", "61 2 * * *"), "--cron: '61 2 * * *' cannot be read"),
    (("deploy", "experiment=small", "--cron", "* * * * * *"), "--cron: '* * * * * *' cannot be read"),
    (("deploy", "experiment=small", "--cron", "0 0 31 2 *"), "--cron: '0 0 31 2 *' cannot be read"),
    ((*NIGHT, "--timezone", "Europe/Berln"), "there is no 'Europe/Berln'; did you mean 'Europe/Berlin'?"),
    ((*NIGHT, "--timezone", "../UTC"), "--timezone: there is no '../UTC'"),
    ((*NIGHT, "--name", "a/b"), "'a/b' cannot name a deployment"),
    ((*NIGHT, "--name", "small#2"), "'small#2' cannot name a deployment; use letters, digits, spaces, _ . and -"),
    (("deploy", "--remove", "small#2"), "'small#2' cannot name a deployment"),
    ((*NIGHT, "--retries", "-1"), "--retries: must be at least 0, got -1"),
    ((*NIGHT, "--pool", "nosuch"), "--pool: there is no work pool 'nosuch'; make it with `prefect work-pool create"),
    ((*NIGHT, "--job-variable", "envv=1"), "has no 'envv'; did you mean 'env'? it has: command, env"),
    ((*NIGHT, "--job-variable", "env"), "--job-variable: expected KEY=VALUE or env.NAME=VALUE, got 'env'"),
    ((*NIGHT, "--job-variable", "env=1", "--job-variable", "env.A=1"), "give env.NAME=VALUE, got 'env=1'"),
    ((*NIGHT, "--serve", "--pool", "ratchet"), "--serve: runs here, without a work pool"),
    (("deploy", "--list", "experiment=small"), "overrides: goes with --cron"),
    (("deploy", "--remove", "small", "--pool", "x"), "--pool: goes with --cron"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[" ".join(each[0][1:]) for each in REFUSED])
def test_a_mistake_is_one_line_and_nothing_is_deployed(arguments, message, project, capsys):
    from flows.schedules.deployments import deployments

    assert main(list(arguments)) == 2
    error = capsys.readouterr().err
    assert error.startswith("ratchet: ") and error.count("\n") == 1 and message in error, error
    assert deployments() == []


@pytest.mark.parametrize("arguments", [NIGHT, ("deploy", "--list"), ("deploy", "--remove", "small")], ids=" ".join)
def test_without_a_server_that_stays_it_says_what_to_do(arguments, project, capsys):
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert main(list(arguments)) == 2
    error = capsys.readouterr().err
    assert "PREFECT_API_URL: a schedule needs a Prefect server that stays" in error
    assert "prefect server start" in error and error.count("\n") == 1


def test_one_thing_at_a_time(capsys):
    for arguments in (["deploy", "experiment=small"], ["deploy", *CRON, "--list"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2
    assert "not allowed with argument --cron" in capsys.readouterr().err


def test_what_is_deployed_is_listed_changed_and_removed(project, monkeypatch, capsys):
    from prefect.client.orchestration import get_client

    from flows.schedules.deployed import Deployed

    monkeypatch.setenv("RATCHET_RUNS_DIR", "else, [where]")
    assert main([*NIGHT, "--timezone", "Europe/Berlin", "--job-variable", "env.OMP_NUM_THREADS=1"]) == 0
    told = capsys.readouterr()
    assert "prefect worker start --pool ratchet" in told.out and told.err == ""
    assert main([*NIGHT, "sft.max_steps=3", "--name", "small", "--on-overlap", "skip", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    with get_client(sync_client=True) as client:
        found = client.read_deployment_by_name("posttrain/small")
        rules = [rule for rule in client.read_automations() if rule.name.startswith("ratchet small: ")]
    overrides = ["experiment=small", "sft.max_steps=3", f"runs_dir='{project / 'else, [where]'}'"]
    assert made["overrides"] == found.parameters["overrides"] == overrides
    assert (made["on_overlap"], made["timezone"], made["pool"]) == ("skip", "UTC", "ratchet")
    assert [(each.schedule.cron, each.schedule.timezone) for each in found.schedules] == [("0 2 * * *", "UTC")]
    assert found.global_concurrency_limit.limit == 1
    assert found.job_variables["env"] == {"PYTHONSAFEPATH": "1"}  # and nothing of the deployment that was there before
    assert [step["prefect.deployments.steps.set_working_directory"]["directory"] for step in found.pull_steps] == [
        str(project)
    ]
    assert sorted(rule.name for rule in rules) == [
        f"ratchet small: {what}" for what in ("crashed", "crashed too often", "not begun", "silent")
    ]
    kept = Deployed.read(str(found.id))
    assert (list(kept.overrides), kept.directory, kept.timezone) == (overrides, str(project), "UTC")
    place = project / "prefect" / "ratchet" / "deployments"
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert main(["deploy", "--list"]) == 0
    assert "small  0 2 * * * (UTC)  ratchet  skip" in capsys.readouterr().out
    for said in ("small: removed", "small: is not deployed, so there is nothing to remove"):
        assert main(["deploy", "--remove", "small"]) == 0
        assert said in capsys.readouterr().out
    assert main(["deploy", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [] and not list(place.iterdir())
    with get_client(sync_client=True) as client:
        assert not [rule for rule in client.read_automations() if rule.name.startswith("ratchet small: ")]


def test_what_to_do_next_can_be_pasted(project, capsys):
    assert main([*NIGHT, "--name", "every night"]) == 0
    told = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert ["prefect", "deployment", "run", "posttrain/every night", "runs", "it", "now"] in told
    (removal,) = [words[:4] for words in told if "--remove" in words]
    assert main(removal[1:]) == 0
    assert "every night: removed" in capsys.readouterr().out


def test_a_deployment_of_another_project_is_not_replaced_without_a_word(project, monkeypatch, capsys):
    monkeypatch.setenv("RATCHET_RUNS_DIR", "elsewhere")
    own = [*NIGHT, "++runs_dir=own", "--name", "shared", "--json"]
    for _ in range(2):
        assert main(own) == 0
        made = capsys.readouterr()
        assert json.loads(made.out)["overrides"] == ["experiment=small", "++runs_dir=own"]
        assert "replace" not in made.err
    write_project(project / "other")
    monkeypatch.chdir(project / "other")
    assert main(own) == 0
    assert f"ratchet: shared: replaces what was deployed from {project}\n" in capsys.readouterr().err
    assert main(["deploy", "--remove", "shared"]) == 0


def test_a_pool_that_hands_on_no_environment_is_used_and_it_is_said_what_lacks(project, capsys):
    make_bare_pool("bare")
    assert main([*NIGHT, "--pool", "bare", "--name", "bare"]) == 0
    said = "ratchet: --pool: the work pool 'bare' hands no environment to its runs, which need PYTHONSAFEPATH=1"
    assert capsys.readouterr().err.startswith(said)
    assert main([*NIGHT, "--pool", "bare", "--name", "bare", "--job-variable", "env.A=1"]) == 2
    assert "--job-variable: the work pool 'bare' has no 'env'" in capsys.readouterr().err
    assert main(["deploy", "--remove", "bare"]) == 0


@pytest.mark.parametrize("job", [{"env": {}}, {"env": "{{ env }}"}, {"job_manifest": {"spec": [{"env": "{{env}}"}]}}])
def test_of_a_pool_that_hands_on_an_environment_nothing_is_said(job, project, capsys):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    template = {"job_configuration": job, "variables": {"type": "object", "properties": {"env": {"type": "object"}}}}
    with get_client(sync_client=True) as client:
        pool = WorkPoolCreate(name="whole", type="process", base_job_template=template)
        client.create_work_pool(pool, overwrite=True)
    assert main([*NIGHT, "--pool", "whole"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["deploy", "--remove", "small"]) == 0


DEPLOYED = ["experiment=mine", "+reward.qa.mine={type: custom, path: mine.py}", "runs_dir=/big", "sft.max_steps=9"]

ASKED = [
    (DEPLOYED, DEPLOYED),
    (DEPLOYED[::-1], DEPLOYED),
    ([*DEPLOYED, "seed=3"], [*DEPLOYED, "seed=3"]),
    ([*DEPLOYED[:3], "sft.max_steps=12"], [*DEPLOYED[:3], "sft.max_steps=12"]),
    (["seed=3", *DEPLOYED[1:3]], [*DEPLOYED[1:3], "seed=3"]),
    ([*DEPLOYED, "runs_dir=/elsewhere"], "runs_dir: may not be changed"),
    ([*DEPLOYED, "reward.qa.mine.path=/tmp/x.py"], "reward.qa.mine.path: may not be changed"),
    ([*DEPLOYED, "seed=${oc.env:TOKEN}"], "takes a plain value"),
    ([*DEPLOYED[:2], DEPLOYED[3]], "runs_dir=/big: belongs to the deployment and may not be left out"),
    ([DEPLOYED[0], *DEPLOYED[2:]], "+reward.qa.mine={type: custom, path: mine.py}: belongs to the deployment"),
    ([], "belongs to the deployment"),
]


@pytest.mark.parametrize(("overrides", "expected"), ASKED)
def test_a_run_differs_from_its_deployment_only_in_what_may_be_changed(overrides, expected):
    from flows.schedules.deployed import Deployed

    settings = {"directory": "/project", "config_dir": None, "timezone": "UTC"}
    deployed = Deployed(id=str(uuid4()), name="mine", overrides=DEPLOYED, **settings)
    if isinstance(expected, str):
        with pytest.raises(ConfigError) as refused:
            deployed.asked(overrides)
        assert expected in str(refused.value)
    else:
        assert deployed.asked(overrides) == expected


def test_a_machine_that_does_not_know_a_deployment_says_so(project):
    from flows.schedules.deployed import Deployed

    with pytest.raises(UserError, match="nobody deployed this on this machine as this user"):
        Deployed.read(str(uuid4()))


def test_without_retries_a_run_that_crashed_stays_so():
    from flows.schedules.recovery import automations

    rules = [rule.name for rule in automations(uuid4(), "mine", 0)]
    assert rules == ["ratchet mine: silent", "ratchet mine: not begun"]


def test_job_variables_are_json_where_they_are_json():
    from flows.schedules.deployments import job_variables

    given = ["env.A=1", "env.B=x=y", "stream_output=false", "name=night", 'labels={"team": "nlp"}']
    assert job_variables(given) == {
        "env": {"A": "1", "B": "x=y"},
        "stream_output": False,
        "name": "night",
        "labels": {"team": "nlp"},
    }
