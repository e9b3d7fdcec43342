"""What ships is in the registry, whole, and there it is found again: with a real MLflow database and real folds."""

import json
import re
import shutil
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from conf.errors import OutageError, UserError
from flows.cli import main
from flows.commands.plan import plan_rows
from flows.registry import Registry
from flows.store import Entry
from flows.tracking import _make_database
from flows.workspace import Workspace
from stages.contract import Hardware
from stages.export import export
from stages.identity import directory_identity
from tests.flows.registering import REASONS, Night, numbers, registry, tag, trained
from tests.flows.test_tracking import dead_server


@pytest.fixture(scope="module")
def template(tmp_path_factory, tiny) -> Path:
    """A runs directory with an empty database and three trained models; MLflow takes seconds to make one."""
    folder = tmp_path_factory.mktemp("template")
    _make_database(folder / "mlflow.db")
    first = trained(folder, tiny, "a").result()
    trained(folder, first.model, "b")
    trained(folder, tiny, "c")
    return folder


@pytest.fixture
def runs_dir(template, tmp_path) -> Path:
    """A copy of it: a database of its own."""
    return shutil.copytree(template, tmp_path / "runs")


def ship(runs_dir: Path, name: str, **more) -> str:
    """A night whose gate lets one of the models through; returns what it came to."""
    result = Night(runs_dir, f"run/sft-{name}", **more).ship()
    return f"{result.verdict}: {result.report.splitlines()[-1]}"


def identity(runs_dir: Path, name: str) -> str:
    return Entry(runs_dir / "store" / f"sft-{name}").result().model.identity


def test_what_ships_is_the_champion_and_the_one_before_it_the_previous(runs_dir):
    assert ship(runs_dir, "a") == "ship: shipped: version 1 of ratchet is the champion"
    assert numbers(runs_dir) == {"champion": 1, "anchor": 1}
    assert ship(runs_dir, "b") == "ship: shipped: version 2 of ratchet is the champion, after version 1"
    assert ship(runs_dir, "c") == "ship: shipped: version 3 of ratchet is the champion, after version 2"
    assert numbers(runs_dir) == {"champion": 3, "previous": 2, "anchor": 1}
    assert not list(runs_dir.glob(".ship-*"))


def test_a_version_says_what_made_it_and_why_it_was_allowed_to_ship(runs_dir, tiny):
    ship(runs_dir, "b")
    version = registry(runs_dir).aliases()["champion"]
    (record,) = (json.loads(path.read_text()) for path in runs_dir.glob("pipelines/*/pipeline.json"))
    (gate,) = (path.parent.name for path in runs_dir.glob("store/gate-*/result.json"))
    assert record["registered"] == {"gate": {"name": "ratchet", "version": 1}}
    assert version.tags["ratchet.pipeline"] == record["id"] and version.tags["ratchet.gate"] == gate
    assert version.tags["ratchet.git_commit"] == record["git_commit"]
    assert version.tags["ratchet.identity"] == identity(runs_dir, "b")
    assert [part["path"] for part in tag(version, "model")["adapters"]] == ["sft-a/adapter", "sft-b/adapter"]
    assert tag(version, "model")["sha256"] == tag(version, "original")["sha256"] == tiny.sha256
    assert tag(version, "store") == list(tag(version, "receipts")) == list(tag(version, "data")) == ["sft-a", "sft-b"]
    assert tag(version, "scores") == {"arithmetic.candidate": 0.6, "arithmetic.baseline": 0.2}
    assert re.fullmatch("[0-9a-f]{64}", version.tags["ratchet.gate_version"])
    assert list(tag(version, "suites")) == ["arithmetic"] and version.tags["ratchet.config"]
    assert REASONS[0] in version.description


def test_the_registered_model_answers_as_the_run_does(runs_dir, tmp_path, monkeypatch, capsys):
    ship(runs_dir, "b")
    prompt = "What is 41 + 28?"
    assert main(["generate", "sft-b", prompt, "--runs-dir", str(runs_dir), "--max-new-tokens", "12"]) == 0
    expected = capsys.readouterr().out.rstrip("\n")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry(runs_dir).uri)
    pipeline = mlflow.transformers.load_model("models:/ratchet@champion")
    said = pipeline([{"role": "user", "content": prompt}], max_new_tokens=12, do_sample=False)
    assert said[0]["generated_text"][-1]["content"] == expected != ""
    found = registry(runs_dir)
    exported = export(Entry(runs_dir / "store/sft-b").result().model, Hardware(), tmp_path / "exported")
    weights = "model.safetensors"
    folder = found.directory(found.aliases()["champion"])
    assert (folder / weights).read_bytes() == (exported / weights).read_bytes()
    assert {path.name for path in folder.iterdir()} == {path.name for path in exported.iterdir()}


def test_the_same_gate_ships_once(runs_dir):
    for _ in range(2):  # the second night's champion is the candidate itself
        again = Night(runs_dir, "run/sft-a", {"anchor": "anchor"}).ship()
    assert (again.verdict, again.report.splitlines()[-1]) == ("ship", "version 1 of ratchet is the champion")
    assert len(list(runs_dir.glob("store/gate-*"))) == 1
    Night(runs_dir, "run/sft-b").ship()
    again = Night(runs_dir, "run/sft-a", {"baseline": "base", "anchor": "base"}).ship()  # as it was the first night
    assert (again.verdict, again.report.splitlines()[-1]) == (
        "ship",
        "version 1 of ratchet has shipped; now it is version 2 of ratchet",
    )
    assert numbers(runs_dir) == {"champion": 2, "previous": 1, "anchor": 1}


def test_hold_and_a_gate_between_stages_register_nothing(runs_dir):
    for night, verdict in [
        (Night(runs_dir, "run/sft-a"), "hold"),
        (Night(runs_dir, "run/sft-b", {"set": {}}), "ship"),
    ]:
        from flows.shipping import ship

        run = night.run()
        inputs, result = night.decided(verdict)
        assert ship(run, inputs, result) is result
        run.record.release()
    assert registry(runs_dir).aliases() == {}


def test_of_two_that_were_compared_with_the_same_champion_the_second_is_refused(runs_dir):
    ship(runs_dir, "a")
    one, other = Night(runs_dir, "run/sft-b"), Night(runs_dir, "run/sft-c")
    assert one.ship().verdict == "ship"
    refused = other.ship()
    assert refused.verdict == "inconclusive"
    assert refused.report.splitlines()[-1] == (
        "not shipped: the champion is version 2 of ratchet, and this was compared with version 1; run again, "
        "scores that are known are reused"
    )
    assert numbers(runs_dir) == {"champion": 2, "previous": 1, "anchor": 1}
    assert ship(runs_dir, "c").startswith("ship: shipped: version 3")


def test_what_was_compared_with_the_base_ships_only_while_there_is_no_champion(runs_dir):
    first, second = (Night(runs_dir, f"run/sft-{name}", {"baseline": "base"}) for name in "ab")
    assert first.ship().verdict == "ship"
    refused = second.ship()
    assert refused.verdict == "inconclusive" and "compared with base; set its baseline to champion" in refused.report


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


WRITES = (
    "create_logged_model",
    "log_model_artifacts",
    "finalize_logged_model",
    "create_registered_model",
    "create_model_version",
    "set_registered_model_alias",
    "set_model_version_tag",
)


def killed_at(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be killed in the middle of the call with this number of those that change the registry."""
    calls = iter(range(count + 1))

    def dying(name: str):
        original = getattr(MlflowClient, name)

        def call(self, *arguments, **named):
            last = next(calls) == count
            if last and name == "log_model_artifacts":  # half of it
                shutil.rmtree(Path(arguments[1]) / "model")
            if not last or name == "log_model_artifacts":
                original(self, *arguments, **named) if last else None
            if last:
                raise Killed
            return original(self, *arguments, **named)

        return call

    for name in WRITES:
        monkeypatch.setattr(MlflowClient, name, dying(name))


def whole(found: Registry) -> dict[str, int]:
    """The version of every alias; each has a whole model behind it."""
    for alias, number in found._numbers().items():
        folder = found.directory(found.version(number))
        assert directory_identity(folder), alias
    return found._numbers()


def test_killed_at_any_point_the_aliases_point_to_whole_models_and_the_next_attempt_ships(runs_dir, template):
    ship(runs_dir, "a")
    kills = 0
    while True:
        shutil.rmtree(runs_dir.parent / f"k{kills - 1}", ignore_errors=True)
        place = shutil.copytree(runs_dir, runs_dir.parent / f"k{kills}")
        with pytest.MonkeyPatch.context() as patch:
            killed_at(kills, patch)
            try:
                ship(place, "b")
                break
            except Killed:
                kills += 1
        found = whole(registry(place))
        assert found["champion"] in (1, 2) and found["anchor"] == 1
        means = registry(place).aliases()
        assert means.get("previous", means["champion"]).number == 1, "even where the alias has not moved yet"
        assert ship(place, "b").startswith("ship: ")
        assert whole(registry(place)) == {"champion": 2, "previous": 1, "anchor": 1}
        assert len(registry(place).tagged("ratchet.identity", identity(place, "b"))) == 1
    assert kills >= 7


def test_aliases_mean_models_of_the_store_so_that_lineage_goes_on(runs_dir):
    before = Night(runs_dir, "champion", {"anchor": "anchor"})
    assert set(before.workspace.aliases.asked.values()) == {"base (registry.fallback; there is none in ratchet yet)"}
    for name in "ab":
        ship(runs_dir, name)
    night = Night(runs_dir, "champion", {"baseline": "previous", "anchor": "anchor"})
    models = night.workspace.inputs("gate", {}).models
    assert {label: ref.identity for label, ref in models.items()} == {
        "start": identity(runs_dir, "b"),
        "baseline": identity(runs_dir, "a"),
        "anchor": identity(runs_dir, "a"),
    }
    opened = Night(runs_dir, "run/sft-c")
    ship(runs_dir, "c")
    assert opened.workspace.inputs("gate", {}).models["baseline"].identity == identity(runs_dir, "b"), "asked once"
    rows = plan_rows(Workspace(night.config))
    assert rows[0]["aliases"]["champion"] == "version 3 of ratchet"


def test_the_fallback_may_be_a_run(runs_dir):
    night = Night(runs_dir, "run/sft-b", registry={"fallback": "run/sft-a"})
    assert night.workspace.inputs("gate", {}).models["baseline"].identity == identity(runs_dir, "a")
    assert night.ship().verdict == "ship"


def test_without_its_adapters_a_champion_is_compared_with_as_its_files_and_is_no_start(runs_dir):
    ship(runs_dir, "a")
    (runs_dir / "store/sft-a/adapter/lineage.json").unlink()
    baseline = Night(runs_dir, "run/sft-c").workspace.inputs("gate", {}).models["baseline"]
    folder = registry(runs_dir).directory(registry(runs_dir).aliases()["champion"])
    assert (baseline.config.id, baseline.adapters) == (str(folder), ())
    with pytest.raises(UserError, match=r"pipeline.gate: version 1 of ratchet \(champion\) has another base .*model="):
        Night(runs_dir, "champion")
    refused = Night(runs_dir, "run/sft-c").ship()
    assert refused.verdict == "ship", "it was compared with this version"
    shutil.rmtree(folder.parent)
    (runs_dir / "store/sft-c/adapter/lineage.json").unlink()
    Night(runs_dir, "base")
    shutil.rmtree(registry(runs_dir).directory(registry(runs_dir).aliases()["champion"]))
    with pytest.raises(UserError, match="version 2 of ratchet: its files are gone"):
        Night(runs_dir, "base")


REGISTERED = {"id": "models:/ratchet@champion", "fallback": "tiny:random"}


def test_the_champion_can_be_the_base_model(runs_dir, tiny):
    first = Night(runs_dir, "base", model=REGISTERED)
    assert first.workspace.base.identity == tiny.identity
    assert first.workspace.aliases.asked["models:/ratchet@champion"].startswith("tiny:random (model.fallback")
    ship(runs_dir, "a")
    night = Night(runs_dir, "base", model=REGISTERED)
    base = night.workspace.base
    assert base.config.id.startswith(str(runs_dir / "mlartifacts")) and not base.adapters
    models = night.workspace.inputs("gate", {}).models
    assert models["start"].identity == base.identity
    assert models["original"].identity == tiny.identity
    grown = trained(runs_dir, base, "grown")
    assert Night(runs_dir, f"run/{grown.id}", {"baseline": "base"}, model=REGISTERED).ship().verdict == "ship"
    version = registry(runs_dir).aliases()["champion"]
    assert (version.number, tag(version, "original")["sha256"]) == (2, tiny.sha256)
    pinned = Night(runs_dir, "base", model={"id": "models:/ratchet/1", "fallback": None})
    assert pinned.workspace.base.identity == base.identity
    with pytest.raises(UserError, match=r"model.id: there is no models:/ratchet/7 yet; model.fallback"):
        Night(runs_dir, "base", model={"id": "models:/ratchet/7", "fallback": None})


def person(runs_dir: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main([*arguments, "--runs-dir", str(runs_dir)])
    shown = capsys.readouterr()
    return code, (shown.out + shown.err).strip()


def test_a_person_promotes_against_the_gate_and_takes_it_back(runs_dir, capsys):
    nothing = "ratchet: rollback: nothing has shipped as ratchet, so there is none to go back to; "
    nothing += "`ratchet promote RUN` ships another"
    assert person(runs_dir, capsys, "rollback", "--reason", "x") == (2, nothing)
    ship(runs_dir, "a")
    only = nothing.replace("nothing has shipped as ratchet", "version 1 of ratchet is the first champion")
    assert person(runs_dir, capsys, "rollback", "--reason", "x") == (2, only)
    Night(runs_dir, "run/sft-b").decided("hold")
    assert person(runs_dir, capsys, "promote", "sft-b", "--reason", " ")[0] == 2
    code, said = person(runs_dir, capsys, "promote", "sft-b", "--reason", "the suite is broken")
    assert code == 0
    assert re.fullmatch(r"version 2 of ratchet is the champion, after version 1; its gate \(gate-\w+\) said hold", said)
    version = registry(runs_dir).aliases()["champion"]
    assert version.tags["ratchet.identity"] == identity(runs_dir, "b")
    assert version.tags["ratchet.verdict"] == "hold" and version.tags["ratchet.person.why"].startswith(
        "the suite is br"
    )
    assert re.search(
        r": promoted by \S+@\S+: the suite is broken \(its gate \(gate-\w+\) said hold\)$", version.description
    )
    code, said = person(runs_dir, capsys, "promote", "sft-c", "--reason", "better", "--anchor", "--json")
    assert json.loads(said)["gate"] is None and json.loads(said)["version"] == 3
    assert numbers(runs_dir) == {"champion": 3, "previous": 2, "anchor": 3}
    code, said = person(runs_dir, capsys, "rollback", "--reason", "it shouts")
    said_again = "version 2 of ratchet is the champion, after version 1"
    text = "version 2 of ratchet is the champion again, version 3 is withdrawn; the anchor still is version 3"
    assert (code, said) == (0, text)
    assert numbers(runs_dir) == {"champion": 2, "previous": 1, "anchor": 3}
    assert registry(runs_dir).version(3).description.endswith(": it shouts")
    assert json.loads(person(runs_dir, capsys, "rollback", "--reason", "more", "--json")[1])["version"] == 1
    assert numbers(runs_dir) == {"champion": 1, "anchor": 3}
    assert person(runs_dir, capsys, "promote", "sft-b", "--reason", "y")[1].startswith(said_again)


def test_what_a_person_withdrew_does_not_ship_by_itself_again(runs_dir, capsys):
    ship(runs_dir, "a")
    night = Night(runs_dir, "run/sft-b")
    night.ship()
    assert person(runs_dir, capsys, "rollback", "--reason", "x")[0] == 0
    again = night.ship()
    assert again.verdict == "hold" and "was withdrawn by a person" in again.report
    assert numbers(runs_dir) == {"champion": 1, "anchor": 1}


def test_an_outage_is_told_and_the_same_command_ships_later(runs_dir, monkeypatch):
    uri = dead_server()
    with pytest.raises(UserError, match=f"pipeline.gate: registry: cannot ask MLflow at {uri} what has shipped"):
        Night(runs_dir, "run/sft-a", tracking={"uri": uri})
    away = Night(runs_dir, "run/sft-a", {"baseline": "base"}, tracking={"uri": uri, "required": False})
    with pytest.raises(OutageError, match="the same command registers the model when MLflow answers"):
        away.ship()
    assert ship(runs_dir, "a", step={"baseline": "base"}) == "ship: shipped: version 1 of ratchet is the champion"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("registry.name=a/b", "registry.name: 'a/b' cannot name a registered model"),
        ("registry.fallback=sft", "registry.fallback: expected base or run/<id>, got 'sft'"),
        ("model.id=models:/x", "model.id: 'models:/x' is no registered model; write models:/NAME@champion"),
        ("model.fallback=tiny:random", "model.fallback: is for a registered model"),
    ],
)
def test_a_wrong_address_is_refused(override, message, capsys):
    assert main(["plan", "experiment=smoke", override]) == 2
    assert message in capsys.readouterr().err


def test_plan_says_what_an_alias_means_and_makes_no_database(tmp_path, capsys):
    arguments = ["experiment=smoke", f"runs_dir={tmp_path / 'runs'}", "pipeline.evaluate.baseline=champion"]
    assert main(["plan", *arguments]) == 0
    assert "champion: base (registry.fallback; there is none in ratchet yet)" in capsys.readouterr().out
    assert main(["plan", *arguments, "model=champion", "model.fallback=tiny:random", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[-1]["aliases"]["champion"].startswith("base") and not (tmp_path / "runs").exists()
