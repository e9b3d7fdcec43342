"""A pipeline goes to another machine and its results come back: what is packed, what is refused, what is cached then.

The runs are made by hand (see `tests.flows.standins`); `tests/flows/test_bundle_there.py` goes the way with real ones.
"""

import contextlib
import copy
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from conf.errors import UserError
from conf.loader import dump
from flows.bundles.archive import MANIFEST, Member, write_archive
from flows.bundles.edges import check_aliases
from flows.bundles.importing import import_archive
from flows.bundles.redaction import Redaction
from flows.bundles.texts import experiment_text
from flows.bundles.unpacking import unpack_archive
from flows.cli import main
from flows.commands.plan import plan_rows
from flows.compose import compose_run, compose_values
from flows.fingerprint import digest
from flows.references import pipeline_records
from flows.store import Entry, Store, write_json
from flows.workspace import Workspace
from tests.flows.standins import OVERRIDES, REWARD, Project
from tests.flows.test_together import eventually

ALL = ["reinforce_audit", "sft", "pairs", "preference", "reinforce", "evaluate"]
MORE = "reinforce.max_steps=5"
"""What is computed there."""


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    """The configuration, composed once."""
    composed: dict[str, Any] = dump(compose_run(OVERRIDES).sections)
    return composed


class Machine:
    """A directory with another HOME than others, in which the command line is called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        (folder / "home").mkdir(parents=True)

    def ratchet(self, *arguments: str) -> int:
        """Call it there."""
        with self._monkeypatch.context() as patch:
            patch.setenv("HOME", str(self.folder / "home"))
            patch.chdir(self.folder)
            return main(list(arguments))

    def states(self, *overrides: str) -> dict[str, str]:
        """The plan there."""
        with self._monkeypatch.context() as patch:
            patch.chdir(self.folder)
            return {row["step"]: row["state"] for row in plan_rows(Workspace(compose_run(overrides)))}


@pytest.fixture
def here(tmp_path: Path, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with a project whose pipeline has run, but for its last step."""
    monkeypatch.delenv("RATCHET_RUNS_DIR", raising=False)
    return with_a_run(Machine(tmp_path / "here", monkeypatch), values)


def with_a_run(machine: "Machine", values: dict[str, Any]) -> "Machine":
    with contextlib.chdir(machine.folder):
        Project(machine.folder, values).run(until="preference")
    return machine


@pytest.fixture(scope="module")
def bundle(values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a run, bundled; only to be read."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("RATCHET_RUNS_DIR", raising=False)
        machine = with_a_run(Machine(tmp_path_factory.mktemp("bundled") / "here", monkeypatch), values)
        assert machine.ratchet("bundle", "latest", "--out", "x.tar.zst") == 0
        return machine.folder / "x.tar.zst"


@pytest.fixture
def there(tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Another machine, with the bundle unpacked."""
    machine = Machine(tmp_path / "there", monkeypatch)
    assert machine.ratchet("import", str(bundle), "--unpack", "work") == 0
    machine.folder /= "work"
    (machine.folder / "home").mkdir()
    return machine


def finish(machine: Machine, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> None:
    """Run the rest of the bundled pipeline by hand."""
    with monkeypatch.context() as patch:
        patch.chdir(machine.folder)
        Project(machine.folder, dump(compose_run(["experiment=bundled", *overrides]).sections)).run()


def test_there_and_back(here: Machine, there: Machine, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert list(there.states("experiment=bundled").values()) == [*["cached"] * 4, "run", "run, after reinforce"]
    finish(there, monkeypatch, MORE)
    assert there.ratchet("bundle", "latest", "--out", "result.tar.zst") == 0
    shutil.copy(there.folder / "result.tar.zst", here.folder)
    assert set(here.states(*OVERRIDES, MORE).values()) != {"cached"}
    capsys.readouterr()
    assert here.ratchet("import", "result.tar.zst") == 0
    told = capsys.readouterr().out
    assert told.count("is here already, and is kept") == 4 and told.count(": imported") == 3
    assert here.states(*OVERRIDES, MORE) == dict.fromkeys(ALL, "cached")
    assert here.ratchet("runs") == 0
    assert "completed, imported from " in capsys.readouterr().out
    assert here.ratchet("import", "result.tar.zst") == 0
    assert capsys.readouterr().out.count("is here already, and is kept") == 7


def test_the_plan_there_says_what_another_choice_computes_anew(there: Machine, capsys: Any) -> None:
    capsys.readouterr()
    assert there.ratchet("plan", "experiment=bundled", "hardware.threads=99", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    changed = {row["step"]: row["changes"] for row in rows if row["state"] == "run"}
    assert set(changed) == {"reinforce_audit", "sft"}
    assert all(len(why) == 1 and why[0].endswith("-> 99") for why in changed.values())


def test_nothing_in_it_names_a_place_of_this_machine(here: Machine, values: dict[str, Any]) -> None:
    outside = here.folder.parent / "outside"
    outside.mkdir()
    shutil.move(here.folder / "my_reward.py", outside)
    shutil.move(here.folder / "rows.csv", outside)
    (outside / "template.jinja").write_text("{% for message in messages %}{{ message['content'] }}<|end|>{% endfor %}")
    overrides = [
        *OVERRIDES,
        f"data.arithmetic.source={outside}/rows.csv",
        f"+reward.mine.form={{type: json, schema: {here.folder}/form.json}}",
        f"reward.mine.mine.path={outside}/my_reward.py",
        f"model.chat_template={outside}/template.jinja",
        f"runs_dir={here.folder}/elsewhere/runs",
        "tracking.uri=http://somebody:password@example.com",
    ]
    (here.folder / "form.json").write_text("{}")
    assert here.ratchet("bundle", *overrides, "--out", "y.tar.zst") == 0
    folder = here.folder / "unpacked"
    folder.mkdir()
    unpack_archive(here.folder / "y.tar.zst", folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    names = {str(path.relative_to(folder)) for path in files}
    assert {"form.json", "files/rows.csv", "files/my_reward.py", "files/template.jinja"} <= names
    for path in files:
        content = path.read_bytes()
        assert str(here.folder.parent).encode() not in content, path
        assert b"password" not in content, path


def test_the_same_content_gives_the_same_bytes(here: Machine) -> None:
    for name in ("one", "two"):
        assert here.ratchet("bundle", *OVERRIDES, "--out", f"{name}.tar.zst") == 0
    assert (here.folder / "one.tar.zst").read_bytes() == (here.folder / "two.tar.zst").read_bytes()


def test_a_pipeline_as_it_stands_takes_along_what_is_done(here: Machine, tmp_path: Path, capsys: Any) -> None:
    assert here.ratchet("bundle", *OVERRIDES, "--out", "y.tar.zst", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["entries"]) == 4
    assert here.ratchet("import", "y.tar.zst", "--unpack", str(tmp_path / "new")) == 0
    assert here.ratchet("runs", "--runs-dir", str(tmp_path / "new/runs")) == 0
    assert "smoke-bundled-" in capsys.readouterr().out


def test_an_edge_to_a_run_travels_as_the_entry_it_means(here: Machine, tmp_path: Path, monkeypatch: Any) -> None:
    entry = next(path.name for path in (here.folder / "runs/store").glob("sft-*"))
    edge = "+pipeline.again={stage: sft, start: run/latest/sft, data: arithmetic}"
    only = [f"~pipeline.{name}" for name in ("pairs", "preference", "reinforce", "evaluate")]
    assert here.ratchet("bundle", *OVERRIDES[:-2], *only, edge, "--out", "y.tar.zst") == 0
    there = Machine(tmp_path / "there", monkeypatch)
    assert there.ratchet("import", str(here.folder / "y.tar.zst"), "--unpack", "work") == 0
    there.folder /= "work"
    config = json.loads((there.folder / "config.json").read_text())
    assert config["pipeline"]["again"]["start"] == f"run/latest/sft:run/{entry}"
    assert there.states("experiment=bundled") == {"sft": "cached", "again": "run"}


def test_an_edge_of_a_run_travels_as_what_it_meant_then(
    here: Machine, values: Any, tmp_path: Path, capsys: Any
) -> None:
    entry = next(path.name for path in (here.folder / "runs/store").glob("sft-*"))
    more = {"more": {"stage": "sft", "start": "run/latest/sft", "data": "arithmetic"}}
    left = {"left": {**more["more"], "start": "run/latest/preference", "after": ["more"]}}
    config = copy.deepcopy(values) | {"pipeline": {"sft": values["pipeline"]["sft"], **more, **left}}
    with contextlib.chdir(here.folder):
        Project(here.folder, config).run(until="more")
        Project(here.folder, values).run(until="sft", **{"sft.max_steps": 9})
    record = next(each for each in pipeline_records(here.folder / "runs") if "more" in each["steps"])
    assert here.ratchet("bundle", record["id"], "--out", "y.tar.zst") == 2
    assert "left.start: what run/latest/preference meant in that run cannot be told" in capsys.readouterr().err
    record["config"]["pipeline"].pop("left")
    write_json(here.folder / "runs/pipelines" / record["id"] / "pipeline.json", record)
    assert here.ratchet("bundle", record["id"], "--out", "y.tar.zst") == 0
    _, members = contents(here.folder / "y.tar.zst", tmp_path / "contents")
    config = json.loads(members["config.json"].content)
    assert config["pipeline"]["more"]["start"] == f"run/latest/sft:run/{entry}"


def test_what_an_evaluation_compares_travels_as_what_it_meant_then(
    here: Machine, values: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """An alias, `run/latest` and the name of a run; what is shown of them stays, and so does the fingerprint."""
    first = pipeline_records(here.folder / "runs")[0]
    sft, preference = (first["steps"][name]["store"] for name in ("sft", "preference"))
    models = ["champion", "run/latest/sft", f"run/{first['id']}/preference", f"mine:run/{sft[:-4]}", "again"]
    pipeline = {
        "again": {"stage": "sft", "start": "run/latest/preference", "data": "arithmetic"},
        "evaluate": {"stage": "evaluate", "start": "again", "models": models},
    }
    config = copy.deepcopy(values) | {"pipeline": pipeline}
    config["registry"]["fallback"] = "run/latest/preference"  # nothing has shipped, so that is the champion
    with contextlib.chdir(here.folder):
        Project(here.folder, config).run()
        Project(here.folder, values).run(until="preference", **{"sft.max_steps": 9})
    done = next(each["id"] for each in pipeline_records(here.folder / "runs") if "again" in each["steps"])
    assert here.ratchet("bundle", done, "--out", "y.tar.zst") == 0
    there = Machine(tmp_path / "there", monkeypatch)
    assert there.ratchet("import", str(here.folder / "y.tar.zst"), "--unpack", "work") == 0
    there.folder /= "work"
    assert there.states("experiment=bundled") == {"again": "cached", "evaluate": "cached"}
    evaluate = json.loads((there.folder / "config.json").read_text())["pipeline"]["evaluate"]
    meant = [preference, sft, preference, sft]
    names = [*models[:3], "mine"]
    assert evaluate["models"] == [*(f"{name}:run/{id_}" for name, id_ in zip(names, meant, strict=True)), "again"]
    (there.folder / "home").mkdir()
    assert there.ratchet("bundle", "experiment=bundled", "--out", "again.tar.zst") == 0
    _, members = contents(there.folder / "again.tar.zst", tmp_path / "contents")
    assert json.loads(members["config.json"].content)["pipeline"]["evaluate"] == evaluate


def test_a_model_of_an_evaluation_that_cannot_be_told_any_more_is_not_bundled(
    here: Machine, values: Any, capsys: Any
) -> None:
    evaluate = {"stage": "evaluate", "start": "sft", "models": ["run/latest/preference"]}
    config = copy.deepcopy(values) | {"pipeline": {"sft": values["pipeline"]["sft"], "evaluate": evaluate}}
    with contextlib.chdir(here.folder):
        Project(here.folder, config).run(until="sft")
    assert here.ratchet("bundle", "latest", "--out", "y.tar.zst") == 2
    told = capsys.readouterr().err
    assert "pipeline.evaluate.models: what run/latest/preference meant in that run cannot be told" in told


@pytest.mark.parametrize("target", [".", "", "../new"])
def test_a_bundle_is_unpacked_where_one_stands(elsewhere: Machine, bundle: Path, target: str) -> None:
    elsewhere.folder /= "empty"
    (elsewhere.folder / "home").mkdir(parents=True)
    (elsewhere.folder / "home").rmdir()
    assert elsewhere.ratchet("import", str(bundle), "--unpack", target) == 0
    assert (elsewhere.folder / target / "run.sh").is_file()
    assert not [path for path in elsewhere.folder.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("target", ["file/x", "/proc/x", "dangling"])
def test_a_place_to_unpack_that_cannot_be_is_refused(
    elsewhere: Machine, bundle: Path, target: str, capsys: Any
) -> None:
    (elsewhere.folder / "file").touch()
    (elsewhere.folder / "dangling").symlink_to("nowhere")
    assert elsewhere.ratchet("import", str(bundle), "--unpack", target) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"ratchet: --unpack: {target}: ") and message.count("\n") == 1, message


@pytest.mark.parametrize("out", ["/proc/x.tar.zst", "folder.tar.zst"])
def test_a_bundle_that_cannot_be_written_is_refused(here: Machine, out: str, capsys: Any) -> None:
    (here.folder / "folder.tar.zst").mkdir()
    assert here.ratchet("bundle", *OVERRIDES, "--out", out) == 2
    message = capsys.readouterr().err
    assert message.startswith("ratchet: --out: ") and out in message and message.count("\n") == 1, message


def test_a_file_that_another_machine_cannot_name_is_refused(here: Machine, capsys: Any) -> None:
    folder = here.folder / "tables"
    folder.mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.csv")).touch()
    used = "+reward.mine.run={type: command, command: ['true'], visible: [tables]}"
    assert here.ratchet("bundle", *OVERRIDES, used, "--out", "y.tar.zst") == 2
    assert "tables/\\udcff.csv': no other machine may know such a name" in capsys.readouterr().err


@pytest.mark.parametrize("now", ["version 2", "version 1 (version 2 is the start itself)"])
def test_an_alias_that_has_moved_since_is_not_bundled(now: str) -> None:
    record = {"id": "night", "aliases": {"champion": "version 2"}}
    check_aliases(record, {"champion": now})
    with pytest.raises(UserError, match="night: champion was version 2 in that run, and is version 3 now"):
        check_aliases(record, {"champion": now.replace("version 2", "version 3")})


def test_both_ways_need_nothing_heavy(bundle: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from flows.cli import main\n"
        "codes = [main(words.split()) for words in sys.argv[1:]]\n"
        f"print(codes, [name for name in {HEAVY!r} if name in sys.modules])"
    )
    words = ["bundle experiment=smoke --out y.tar.zst", f"import {bundle}"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[0, 0] []", done.stderr


HEAVY = ("torch", "transformers", "prefect", "mlflow", "datasets", "trl", "peft")


@pytest.mark.parametrize("text", ["${x}", r"\${x}", r"a\\${x}b\n", "1e5", "on", "007", "é\t\x7f", "a: {b}\n- c"])
def test_text_is_what_it_was_after_hydra_has_read_it(tmp_path: Path, monkeypatch: Any, text: str) -> None:
    values = compose_values(["experiment=smoke"])
    values["data"]["arithmetic"]["system"] = text
    (tmp_path / "conf/experiment").mkdir(parents=True)
    (tmp_path / "conf/experiment/bundled.yaml").write_text(experiment_text(values), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert compose_values(["experiment=bundled"]) == values


REFUSED_HERE = {
    "a secret setting": (["+sft.trainer.hub_token=hf_abc"], "sft.trainer.hub_token: looks like a secret"),
    "a secret in a file": (["reward.mine.mine.path=secret.py"], "has the value of $MY_API_KEY in it"),
    "a password in an address": (
        ["data.arithmetic.system='see http://bob:pw@host'"],
        "data.arithmetic.system: has a user or password in an address",
    ),
    "a secret in a list": (
        ["+sft.trainer.report_to=['http://bob:pw@host']"],
        "sft.trainer.report_to.0: has a user or password in an address",
    ),
    "a place that a library reads": (
        ["+sft.trainer.run_name=/srv/place"],
        "sft.trainer.run_name: names /srv/place, which another machine does not have",
    ),
    "a place that a template reads": (["+model.chat_template_kwargs.today='~/place'"], "names ~/place"),
    "a file elsewhere": (
        ["+reward.mine.run={type: command, command: [/bin/true]}"],
        "reward.mine.run: names /bin/true, which another machine does not have",
    ),
    "a function of no package": (
        ["+reward.mine.own={type: custom, function: own_rewards.reward}"],
        "own_rewards belongs to no installed package",
    ),
    "a run that is not there": (["+pipeline.more={stage: sft, start: run/nothing, data: arithmetic}"], "nothing"),
}


@pytest.mark.parametrize("name", REFUSED_HERE)
def test_what_cannot_travel_is_refused(here: Machine, name: str, monkeypatch: Any, capsys: Any) -> None:
    overrides, says = REFUSED_HERE[name]
    monkeypatch.setenv("MY_API_KEY", "squeamish ossifrage")
    (here.folder / "secret.py").write_text(REWARD + "# squeamish ossifrage\n")
    (here.folder / "own_rewards.py").write_text(REWARD)
    monkeypatch.syspath_prepend(here.folder)
    assert here.ratchet("bundle", *OVERRIDES, *overrides, "--out", "y.tar.zst") == 2
    message = capsys.readouterr().err
    assert says in message and message.count("\n") == 1, message
    assert not (here.folder / "y.tar.zst").exists()


@pytest.mark.parametrize("key", ["reinforce.vllm", "+pipeline.reinforce.set.vllm"])
def test_who_runs_what_is_for_the_other_machine_to_say(here: Machine, key: str, tmp_path: Path, capsys: Any) -> None:
    elsewhere = [
        "orchestration={ray: {address: 'secretplace:6379'}, branches: true}",
        f"{key}={{mode: server, server_base_url: 'http://secretplace:8000', server_port: 1234}}",
    ]
    assert here.ratchet("bundle", *OVERRIDES, *elsewhere, "--out", "y.tar.zst") == 0
    assert f"note: {key.lstrip('+')}: the address of the server stays here" in capsys.readouterr().out
    _, members = contents(here.folder / "y.tar.zst", tmp_path / "contents")
    for name in ("config.json", "conf/experiment/bundled.yaml"):
        assert b"secretplace" not in bytes(members[name].content), name
    values = json.loads(members["config.json"].content)
    assert values["orchestration"]["branches"] is False
    section = values["reinforce"] if key == "reinforce.vllm" else values["pipeline"]["reinforce"]["set"]
    assert (section["vllm"]["mode"], section["vllm"]["server_port"]) == ("server", 8000)


def test_what_was_asked_for_travels_without_what_is_of_this_machine(
    here: Machine, values: Any, tmp_path: Path, capsys: Any
) -> None:
    of_this_machine = [
        "tracking={required: false, uri: 'http://secretplace:5000'}",
        "++tracking.uri=sqlite:////secretplace/x.db",
        "orchestration.ray.address=secretplace:6379",
        "+orchestration={ray: {address: 'secretplace:6379'}}",
        "+pipeline.reinforce.set.vllm={mode: server, server_host: secretplace}",
    ]
    (path,) = here.folder.glob("runs/pipelines/*/pipeline.json")
    record = json.loads(path.read_text())
    record["overrides"] = ["experiment=smoke", *of_this_machine, "tracking.required=false", "~pipeline.pairs"]
    write_json(path, record)
    assert here.ratchet("bundle", "latest", "--out", "y.tar.zst") == 0
    _, members = contents(here.folder / "y.tar.zst", tmp_path / "contents")
    assert not [name for name, member in members.items() if b"secretplace" in bytes(member.content)]
    (saved,) = (json.loads(member.content) for name, member in members.items() if name.endswith("pipeline.json"))
    assert saved["overrides"] == ["experiment=smoke", "tracking.required=false", "~pipeline.pairs"]


def test_what_was_interrupted_there_is_not_said_to_go_on_here(bundle: Path, elsewhere: Machine, capsys: Any) -> None:
    assert elsewhere.ratchet("import", str(bundle)) == 0
    (path,) = elsewhere.folder.glob("runs/pipelines/*/pipeline.json")
    write_json(path, {**json.loads(path.read_text()), "state": "interrupted"})
    assert elsewhere.ratchet("cancel", "latest") == 2
    said = capsys.readouterr().err
    assert "does not run, it is interrupted" in said and "continues it" not in said


FOR_GPUS = {
    "vllm": ["reinforce.vllm.mode=colocate"],
    "bitsandbytes": ["hardware.load_in_4bit=true"],
    "": ["hardware.num_processes=2"],
}


@pytest.mark.parametrize("package", FOR_GPUS)
def test_what_trains_there_is_asked_for(here: Machine, package: str, tmp_path: Path, capsys: Any) -> None:
    assert here.ratchet("bundle", *OVERRIDES, *FOR_GPUS[package], "--out", "y.tar.zst") == 0
    manifest, members = contents(here.folder / "y.tar.zst", tmp_path / "contents")
    assert package.encode() in bytes(members["README.md"].content).split(b"2. Run")[0]
    hardware = manifest["hardware"]
    assert hardware["load_in_4bit"] == (package == "bitsandbytes")
    assert hardware["num_processes"] == (2 if package == "" else 1)


SECRETS = {
    "OPENAI_APIKEY": ("sk-0123456789", "sk-0123456789"),
    "DB_PWD": ("hunter2hunter2", "hunter2hunter2"),
    "OTEL_EXPORTER_OTLP_HEADERS": ("x-auth=0123456789", "x-auth=0123456789"),
    "MLFLOW_ACCESSKEY": ("0123456789", "0123456789"),
    "PREFECT_API_AUTH_STRING": ("admin:password", "admin:password"),
    "DATABASE_URL": ("postgresql://user:abcd1234@db/x", "abcd1234"),
    "A_TOKEN": ('quo"ted\\é', '{"x": "quo\\"ted\\\\é"}'),
    "B_TOKEN": ('quo"ted\\é', json.dumps('quo"ted\\é')),
}


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_known_by_what_they_are_called_and_however_written(name: str, monkeypatch: Any) -> None:
    value, written = SECRETS[name]
    monkeypatch.setenv(name, value)
    assert Redaction({}).secret_in(f"x={written}".encode()) == name


@pytest.mark.parametrize("name", ["PWD", "GIT_AUTHOR_NAME", "DATABASE"])
def test_what_every_shell_knows_is_no_secret(name: str, monkeypatch: Any) -> None:
    monkeypatch.setenv(name, "/home/somebody")
    assert Redaction({}).secret_in(b"in /home/somebody") is None


PLACES = {
    "see /app/x": "see ./x",
    "at https://x.io/app": "at https://x.io/app",
    "in ~/app, ./app and sub/app": "in ~/app, ./app and sub/app",
    "/application": "/application",
    "file:///app": "file://.",
}


@pytest.mark.parametrize("text", PLACES)
def test_a_place_is_a_whole_path(text: str) -> None:
    redaction = Redaction({Path("/app"): "."})
    assert redaction.values(text) == PLACES[text]
    named = redaction.place_in(json.dumps("\n" + text).encode()) is not None
    assert named == (PLACES[text] != text)


def test_a_place_at_the_start_of_a_line_is_found_in_json() -> None:
    assert Redaction({Path("/app"): "."}).place_in(json.dumps("see\n/app").encode()) == "/app"


def contents(bundle: Path, folder: Path) -> tuple[dict[str, Any], dict[str, Member]]:
    """What a bundle says and has."""
    folder.mkdir()
    manifest = unpack_archive(bundle, folder)
    members = {
        name: Member((folder / name).read_bytes(), about["executable"]) for name, about in manifest["members"].items()
    }
    return manifest, members


def entry_file(members: dict[str, Member], stage: str, name: str) -> str:
    return next(path for path in members if path.startswith(f"runs/store/{stage}-") and path.endswith(f"/{name}"))


Change = Callable[[dict[str, Any], dict[str, Member]], None]


def replaced(stage: str, name: str, old: bytes, new: bytes) -> Change:
    """A file of an entry with another content, by somebody who has written the manifest anew."""

    def change(_: dict[str, Any], members: dict[str, Member]) -> None:
        path = entry_file(members, stage, name)
        content = members[path].content
        assert isinstance(content, bytes) and old in content
        members[path] = Member(content.replace(old, new, 1))

    return change


def left_out(stage: str, name: str) -> Change:
    return lambda _, members: members.pop(entry_file(members, stage, name)) and None


def added(path: str) -> Change:
    return lambda _, members: members.update({path: Member(b"extra")})


def added_to_an_entry(_: dict[str, Any], members: dict[str, Member]) -> None:
    members[entry_file(members, "sft", "result.json").replace("result", "extra")] = Member(b"{}")


def said(**values: Any) -> Change:
    return lambda manifest, _: manifest.update(values)


def renamed(manifest: dict[str, Any], members: dict[str, Member]) -> None:
    """An entry under another fingerprint."""
    id_ = next(id_ for id_ in manifest["entries"] if id_.startswith("pairs"))
    other = f"pairs-{'0' * 16}"
    manifest["entries"] = [other if each == id_ else each for each in manifest["entries"]]
    for path in [path for path in members if f"/{id_}/" in path]:
        members[path.replace(id_, other)] = members.pop(path)


def without_its_start(manifest: dict[str, Any], members: dict[str, Member]) -> None:
    id_ = next(id_ for id_ in manifest["entries"] if id_.startswith("sft"))
    manifest["entries"].remove(id_)
    for path in [path for path in members if f"/{id_}/" in path]:
        del members[path]


def remade(stage: str, **changed: Any) -> Change:
    """An entry of which all hashes are right again: its inputs or its result are other ones."""

    def change(manifest: dict[str, Any], members: dict[str, Member]) -> None:
        id_ = next(id_ for id_ in manifest["entries"] if id_.startswith(stage))
        inputs, result = (
            json.loads(members[f"runs/store/{id_}/{name}"].content) for name in ("inputs.json", "result.json")
        )
        inputs |= changed.get("inputs", {})
        members[f"runs/store/{id_}/inputs.json"] = saved = Member(json.dumps(inputs).encode())
        result |= changed.get("result", {})
        result["files"] |= {"inputs.json": saved.sha256}
        del result["digest"]
        members[f"runs/store/{id_}/result.json"] = Member(json.dumps({**result, "digest": digest(result)}).encode())
        new = f"{stage}-{digest(inputs)}"
        manifest["entries"] = [new if each == id_ else each for each in manifest["entries"]]
        for path in [path for path in members if f"/{id_}/" in path]:
            members[path.replace(id_, new)] = members.pop(path)

    return change


def without_a_record(_: dict[str, Any], members: dict[str, Member]) -> None:
    del members[next(path for path in members if path.endswith("/pipeline.json"))]


def recorded(**values: Any) -> Change:
    """Another record of a step."""

    def change(_: dict[str, Any], members: dict[str, Member]) -> None:
        path = next(path for path in members if path.endswith("/pipeline.json"))
        record = json.loads(members[path].content)
        record["steps"]["sft"] |= values
        members[path] = Member(json.dumps(record).encode())

    return change


FORGED: dict[str, tuple[Change, str]] = {
    "a changed adapter": (replaced("sft", "adapter_model.safetensors", b"weights", b"Weights"), "is damaged"),
    "a changed result": (replaced("sft", "result.json", b"0.5", b"0.6"), "result.json is damaged"),
    "changed inputs": (replaced("sft", "inputs.json", b'"seed": 0', b'"seed": 1'), "inputs.json is damaged"),
    "a missing file": (left_out("pairs", "train.jsonl"), "train.jsonl is missing"),
    "a missing result": (left_out("pairs", "result.json"), "is not whole"),
    "another fingerprint": (renamed, "its fingerprint does not follow from its inputs.json"),
    "a file nobody vouches for": (added_to_an_entry, "has a file that it does not vouch for: extra.json"),
    "an entry nobody names": (added("runs/store/sft-0123456789abcdef/x"), "belongs to no entry"),
    "something among the runs": (added("runs/mlflow.db"), "belongs to no entry"),
    "an entry without its start": (without_its_start, "stands on the adapter of sft-"),
    "another start": (remade("pairs", inputs={"models": {"start": "0" * 64}}), "its model does not follow from"),
    "a result elsewhere": (remade("pairs", result={"artifacts": {"train": "../x"}}), "does not vouch for all"),
    "a result of this machine": (remade("pairs", result={"artifacts": {"train": "/etc/passwd"}}), "does not vouch"),
    "a result of no file": (remade("pairs", result={"artifacts": {"train": "no.jsonl"}}), "does not vouch for all"),
    "a step stored elsewhere": (recorded(store="../../x"), "its record of a run is not one"),
    "a step stored nowhere": (recorded(store="sft-0123456789abcdef"), "its record of a run is not one"),
    "no record": (without_a_record, "it has no record of a run"),
    "another format of the store": (said(store_format=99), "its store has format 99"),
    "software of no kind": (said(libraries=3), "does not say with what software"),
    "no software": (said(ratchet={"code": None}), "does not say with what software"),
    "models of no kind": (remade("pairs", inputs={"models": 3}), "its model does not follow from"),
    "no entries": (said(entries=None), "names no entries"),
    "a path as an entry": (said(entries=["../../etc"]), "names no entries"),
}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that has nothing yet."""
    return Machine(tmp_path / "elsewhere", monkeypatch)


def refuse(machine: Machine, path: Path, says: str, capsys: Any) -> None:
    """See that a bundle is refused in one line, and that nothing of it stays."""
    capsys.readouterr()
    assert machine.ratchet("import", str(path)) == 2
    message = capsys.readouterr().err
    assert says in message and message.count("\n") == 1 and len(message) < 600, message
    left = {file.name for file in (machine.folder / "runs").rglob("*") if file.name != ".import.lock"}
    assert left <= {"store", "FORMAT"}


def not_unpacked(machine: Machine) -> None:
    """See that it is not unpacked either, nowhere."""
    before = {path for path in machine.folder.parent.rglob("*") if path.name != "y.tar.zst"}
    assert machine.ratchet("import", "y.tar.zst", "--unpack", "work") == 2
    assert {path for path in machine.folder.parent.rglob("*") if path.name != "y.tar.zst"} == before


@pytest.mark.parametrize("name", FORGED)
def test_a_foreign_or_altered_result_is_refused(bundle: Path, elsewhere: Machine, name: str, capsys: Any) -> None:
    change, says = FORGED[name]
    manifest, members = contents(bundle, elsewhere.folder / "contents")
    change(manifest, members)
    write_archive(elsewhere.folder / "forged.tar.zst", manifest, members)
    refuse(elsewhere, elsewhere.folder / "forged.tar.zst", says, capsys)


def retar(bundle: Path, target: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]) -> Path:
    """The bundle with another tar inside, by somebody who knows tar and nothing of Ratchet."""
    with (
        pyarrow.input_stream(str(bundle), compression="zstd") as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        found = [(info, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]
    change(found)
    with pyarrow.output_stream(str(target), compression="zstd") as out, tarfile.open(fileobj=out, mode="w|") as tar:
        for info, content in found:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return target


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Any:
    def change(found: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        found.insert(2, (info, b"" if link or kind != tarfile.REGTYPE else b"x"))

    return change


def other_byte(found: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    info, content = found[-1]
    found[-1] = info, bytes([content[0] ^ 1]) + content[1:]


RETARRED: dict[str, tuple[Any, str]] = {
    "a path that leads out": (member("../../evil"), "stands '../../evil'"),
    "an absolute path": (member("/etc/evil"), "stands '/etc/evil'"),
    "a symbolic link": (member("link", tarfile.SYMTYPE, "/etc/passwd"), "stands 'link' (a symbolic link)"),
    "a hard link": (member("link", tarfile.LNKTYPE, "config.json"), "stands 'link' (a hard link)"),
    "a device": (member("device", tarfile.CHRTYPE), "stands 'device' (no plain file)"),
    "a member more": (member("more"), "stands 'more'"),
    "a member less": (lambda found: found.pop(), "altered: at 'runs/store/"),
    "a member twice": (lambda found: found.append(found[-1]), "at its end"),
    "another byte": (other_byte, "is another"),
    "another order": (lambda found: found.insert(1, found.pop()), "which its manifest does not describe"),
    "no manifest": (lambda found: found.pop(0), f"it does not begin with {MANIFEST}"),
}


@pytest.mark.parametrize("name", RETARRED)
def test_another_tar_is_refused(bundle: Path, elsewhere: Machine, name: str, capsys: Any) -> None:
    change, says = RETARRED[name]
    refuse(elsewhere, retar(bundle, elsewhere.folder / "y.tar.zst", change), says, capsys)
    not_unpacked(elsewhere)


def manifest_with(names: dict[str, Any]) -> Callable[[Path, Path], None]:
    """A bundle whose manifest describes what it must not."""

    def write(_: Path, target: Path) -> None:
        write_archive(target, {}, {name: Member(b"x") for name in names})

    return write


def too_large(bundle: Path, target: Path) -> None:
    class Bomb(Member):
        size = 2**60

    write_archive(target, {}, {"bomb": Bomb(b"x")})


def bomb(bundle: Path, target: Path) -> None:
    """A gigabyte of zeros behind the last member."""
    with pyarrow.input_stream(str(bundle), compression="zstd") as stream:
        content = stream.read()
    with pyarrow.output_stream(str(target), compression="zstd") as out:
        out.write(content)
        for _ in range(1024):
            out.write(bytes(2**20))


def plain(content: bytes) -> Callable[[Path, Path], None]:
    return lambda _, target: target.write_bytes(content) and None


FILES: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "a path that leads out": (manifest_with({"../evil": 0}), "leads out of it"),
    "an absolute path": (manifest_with({"/etc/evil": 0}), "leads out of it"),
    "the manifest as a directory": (manifest_with({f"{MANIFEST}/x": 0}), "or is taken"),
    "a file as a directory": (manifest_with({"a": 0, "a/b": 0}), "or is taken"),
    "more than there is room for": (too_large, "make room"),
    "a decompression bomb": (bomb, "it goes on after its end"),
    "an empty file": (plain(b""), "is no bundle of Ratchet"),
    "another kind of file": (plain(b"PK\x03\x04 and so on"), "is no bundle of Ratchet"),
    "half of it": (lambda bundle, target: plain(bundle.read_bytes()[:-99])(bundle, target), "damaged or altered"),
    "something behind it": (lambda bundle, target: plain(bundle.read_bytes() + b"x")(bundle, target), "damaged"),
    "nothing": (lambda *_: None, "No such file"),
}


@pytest.mark.parametrize("name", FILES)
def test_another_file_is_refused(bundle: Path, elsewhere: Machine, name: str, capsys: Any) -> None:
    write, says = FILES[name]
    write(bundle, elsewhere.folder / "y.tar.zst")
    refuse(elsewhere, elsewhere.folder / "y.tar.zst", says, capsys)
    not_unpacked(elsewhere)


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    members = {"a": Member(b"some content, " * 20), "b/c": Member(b"more")}
    write_archive(tmp_path / "x.tar.zst", {"a": 1}, members)
    content = (tmp_path / "x.tar.zst").read_bytes()
    for index in range(0, len(content), 7):
        (tmp_path / "y.tar.zst").write_bytes(content[:index] + bytes([content[index] ^ 4]) + content[index + 1 :])
        folder = tmp_path / str(index)
        folder.mkdir()
        try:
            unpack_archive(tmp_path / "y.tar.zst", folder)
        except UserError:
            continue
        assert all((folder / name).read_bytes() == member.content for name, member in members.items())


def test_what_came_out_otherwise_here_is_not_mixed_with_theirs(
    bundle: Path, elsewhere: Machine, values: dict[str, Any], monkeypatch: Any, capsys: Any
) -> None:
    with monkeypatch.context() as patch:
        patch.chdir(elsewhere.folder)
        Project(elsewhere.folder, values).run(until="sft", adapter="another")
    assert elsewhere.ratchet("import", str(bundle)) == 2
    assert "was made here, too, and came out otherwise" in capsys.readouterr().err


def test_an_import_waits_for_who_makes_an_entry_and_says_so_once(bundle: Path, elsewhere: Machine) -> None:
    store, said = Store(elsewhere.folder / "runs"), list[str]()
    store.prepare()
    manifest, _ = contents(bundle, elsewhere.folder / "contents")
    entry = next(Entry(store.root / id_) for id_ in manifest["entries"] if id_.startswith("sft-"))
    with ThreadPoolExecutor() as threads:
        with store.locked(entry, "night (pid 1)", str):
            waiting = threads.submit(import_archive, bundle, elsewhere.folder / "runs", said.append)
            eventually(lambda: said or waiting.done())
            with pytest.raises(TimeoutError):
                waiting.result(1.2)  # it looks every half second
        assert entry.id in waiting.result().new
    assert said == [f"waiting for night (pid 1), which is making {entry.id}"]


def test_an_unfinished_or_damaged_entry_is_replaced(here: Machine, bundle: Path) -> None:
    store = Store(here.folder / "runs")
    sft, pairs = (store.find(f"{stage}-")[0] for stage in ("sft", "pairs"))
    (sft.path / "result.json").unlink()
    (pairs.path / "samples.jsonl").write_text("?")
    assert here.ratchet("import", str(bundle)) == 0
    assert sft.result() is not None and pairs.result() is not None


def test_an_import_that_is_killed_is_done_by_the_next_one(bundle: Path, elsewhere: Machine, monkeypatch: Any) -> None:
    rename, done = Path.rename, []

    def dies(self: Path, target: Any) -> Any:
        if "store" in str(target):
            done.append(target)
            if len(done) == 3:
                raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dies)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a killed process does not clean up
        assert elsewhere.ratchet("import", str(bundle)) == 130
    store = Store(elsewhere.folder / "runs")
    assert not (elsewhere.folder / "runs/pipelines").exists()
    whole = [Entry(path.parent) for path in store.root.glob("[a-z]*/result.json")]
    assert len(whole) == 2 and all(entry.result() for entry in whole)
    assert elsewhere.ratchet("import", str(bundle)) == 0
    assert len(list(store.root.glob("[a-z]*/result.json"))) == 4
    assert not [path for path in store.root.iterdir() if path.name.startswith("..import.")]
    assert len(list((elsewhere.folder / "runs/pipelines").iterdir())) == 1
