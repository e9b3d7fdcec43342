"""What ships is in the registry, whole, and there it is found again: with a real MLflow database and real folds."""

import json
import multiprocessing
import re
import shutil
import signal
from pathlib import Path

import mlflow
import pytest

from conf.errors import OutageError, UnreachableError, UserError
from flows.cli import main
from flows.commands.plan import plan_rows
from flows.mlflow_connection import make_database
from flows.store import Entry
from flows.workspace import Workspace
from stages.contract import Hardware
from stages.export import export
from tests.flows import registering
from tests.flows.registering import REASONS, Killed, Night, killed_at, numbers, registry, tag, trained, whole


@pytest.fixture(scope="module")
def template(tmp_path_factory, tiny) -> Path:
    """A runs directory with an empty database and three trained models; MLflow takes seconds to make one."""
    folder = tmp_path_factory.mktemp("template")
    make_database(folder / "mlflow.db")
    first = trained(folder, tiny, "a").result()
    trained(folder, first.model, "b")
    trained(folder, tiny, "c")
    return folder


@pytest.fixture
def runs_dir(template, tmp_path) -> Path:
    """A copy of it: a database of its own."""
    return shutil.copytree(template, tmp_path / "runs")


@pytest.fixture(scope="module")
def one_night(template, tmp_path_factory) -> Path:
    """The same after a night whose gate let the first model through."""
    folder = shutil.copytree(template, tmp_path_factory.mktemp("night") / "runs")
    assert ship(folder, "a") == "ship: shipped: version 1 of ratchet is the champion"
    return folder


@pytest.fixture
def shipped(one_night, tmp_path) -> Path:
    """A copy of it, but for the files of the first version."""
    return shutil.copytree(one_night, tmp_path / "runs")


def ship(runs_dir: Path, name: str, **more) -> str:
    """A night whose gate lets one of the models through; returns what it came to."""
    result = Night(runs_dir, f"run/sft-{name}", **more).ship()
    return f"{result.verdict}: {result.report.splitlines()[-1]}"


def identity(runs_dir: Path, name: str) -> str:
    return Entry(runs_dir / "store" / f"sft-{name}").result().model.identity


def test_what_ships_is_the_champion_and_the_one_before_it_the_previous(shipped):
    assert numbers(shipped) == {"champion": 1, "anchor": 1}
    assert ship(shipped, "b") == "ship: shipped: version 2 of ratchet is the champion, after version 1"
    assert ship(shipped, "c") == "ship: shipped: version 3 of ratchet is the champion, after version 2"
    assert numbers(shipped) == {"champion": 3, "previous": 2, "anchor": 1}
    assert not list(shipped.glob(".ship-*"))


def test_a_version_says_what_made_it_and_answers_as_the_run_does(runs_dir, tiny, tmp_path, monkeypatch, capsys):
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

    prompt = "What is 41 + 28?"
    assert main(["generate", "sft-b", prompt, "--runs-dir", str(runs_dir), "--max-new-tokens", "12"]) == 0
    expected = capsys.readouterr().out.rstrip("\n")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry(runs_dir).uri)
    pipeline = mlflow.transformers.load_model("models:/ratchet@champion")
    said = pipeline([{"role": "user", "content": prompt}], max_new_tokens=12, do_sample=False)
    assert said[0]["generated_text"][-1]["content"] == expected != ""
    exported = export(Entry(runs_dir / "store/sft-b").result().model, Hardware(), tmp_path / "exported")
    weights = "model.safetensors"
    folder = registry(runs_dir).directory(version)
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
        from flows.registry.shipping import ship

        run = night.run()
        inputs, result = night.decided(verdict)
        assert ship(run, inputs, result) is result
        run.record.release()
    assert registry(runs_dir).aliases() == {}


def test_of_two_that_were_compared_with_the_same_champion_the_second_is_refused(shipped):
    one, other = Night(shipped, "run/sft-b"), Night(shipped, "run/sft-c")
    assert one.ship().verdict == "ship"
    refused = other.ship()
    assert refused.verdict == "inconclusive"
    assert refused.report.splitlines()[-1] == (
        "not shipped: the champion is version 2 of ratchet, and this was compared with version 1; run again, "
        "scores that are known are reused"
    )
    assert numbers(shipped) == {"champion": 2, "previous": 1, "anchor": 1}
    assert ship(shipped, "c").startswith("ship: shipped: version 3")


@pytest.mark.slow
def test_what_was_compared_with_the_base_ships_only_while_there_is_no_champion(runs_dir):
    first, second = (Night(runs_dir, f"run/sft-{name}", {"baseline": "base"}) for name in "ab")
    assert first.ship().verdict == "ship"
    refused = second.ship()
    assert refused.verdict == "inconclusive" and "compared with base; set its baseline to champion" in refused.report


@pytest.mark.slow
def test_killed_at_any_point_the_aliases_point_to_whole_models_and_the_next_attempt_ships(shipped, template):
    kills = 0
    while True:
        shutil.rmtree(shipped.parent / f"k{kills - 1}", ignore_errors=True)
        place = shutil.copytree(shipped, shipped.parent / f"k{kills}")
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


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 5, 6])
def test_killed_for_good_the_next_attempt_ships(shipped, forker, count):
    process = multiprocessing.get_context("forkserver").Process(
        target=registering.ship_and_die, args=(shipped, "b", count)
    )
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    assert whole(registry(shipped))["champion"] in (1, 2)
    assert ship(shipped, "b").startswith("ship: ")
    assert whole(registry(shipped)) == {"champion": 2, "previous": 1, "anchor": 1}
    assert not list(shipped.glob(".ship-*"))


@pytest.mark.slow
def test_of_two_processes_that_ship_at_once_one_wins(shipped, forker, tmp_path):
    context = multiprocessing.get_context("forkserver")
    barrier = context.Barrier(2)
    told = {name: tmp_path / name for name in "bc"}
    processes = [
        context.Process(target=registering.ship_together, args=(shipped, name, barrier, path))
        for name, path in told.items()
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert sorted(path.read_text() for path in told.values()) == ["inconclusive", "ship"]
    (winner,) = (name for name, path in told.items() if path.read_text() == "ship")
    champion = registry(shipped).aliases()["champion"]
    assert champion.tags["ratchet.identity"] == identity(shipped, winner)
    assert whole(registry(shipped)) == {"champion": champion.number, "previous": 1, "anchor": 1}


def test_aliases_mean_models_of_the_store_so_that_lineage_goes_on(shipped):
    ship(shipped, "b")
    night = Night(shipped, "champion", {"baseline": "previous", "anchor": "anchor"})
    models = night.workspace.inputs("gate", {}).models
    assert {label: ref.identity for label, ref in models.items()} == {
        "start": identity(shipped, "b"),
        "baseline": identity(shipped, "a"),
        "anchor": identity(shipped, "a"),
    }
    opened = Night(shipped, "run/sft-c")
    ship(shipped, "c")
    assert opened.workspace.inputs("gate", {}).models["baseline"].identity == identity(shipped, "b"), "asked once"
    rows = plan_rows(Workspace(night.config))
    assert rows[0]["aliases"]["champion"] == "version 3 of ratchet"


def test_the_fallback_may_be_a_run(runs_dir):
    night = Night(runs_dir, "run/sft-b", registry={"fallback": "run/sft-a"})
    assert night.workspace.inputs("gate", {}).models["baseline"].identity == identity(runs_dir, "a")
    meaning = "run/sft-a (registry.fallback; there is none in ratchet yet)"
    assert night.workspace.models.aliases.asked == {"champion": meaning}


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
    assert first.workspace.models.base.identity == tiny.identity
    assert first.workspace.models.aliases.asked["models:/ratchet@champion"].startswith("tiny:random (model.fallback")
    ship(runs_dir, "a")
    night = Night(runs_dir, "base", model=REGISTERED)
    base = night.workspace.models.base
    assert base.config.id.startswith(str(runs_dir / "mlartifacts")) and not base.adapters
    models = night.workspace.inputs("gate", {}).models
    assert models["start"].identity == base.identity
    assert models["original"].identity == tiny.identity
    grown = trained(runs_dir, base, "grown")
    assert Night(runs_dir, f"run/{grown.id}", {"baseline": "base"}, model=REGISTERED).ship().verdict == "ship"
    version = registry(runs_dir).aliases()["champion"]
    assert (version.number, tag(version, "original")["sha256"]) == (2, tiny.sha256)
    pinned = Night(runs_dir, "base", model={"id": "models:/ratchet/1", "fallback": None})
    assert pinned.workspace.models.base.identity == base.identity
    with pytest.raises(UserError, match=r"model.id: there is no models:/ratchet/7 yet; model.fallback"):
        Night(runs_dir, "base", model={"id": "models:/ratchet/7", "fallback": None})


def person(runs_dir: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main([*arguments, "--runs-dir", str(runs_dir)])
    shown = capsys.readouterr()
    return code, (shown.out + shown.err).strip()


def test_a_person_promotes_against_the_gate_and_takes_it_back(shipped, tmp_path, capsys):
    nothing = "ratchet: rollback: nothing has shipped as ratchet, so there is none to go back to; "
    nothing += "`ratchet promote RUN` ships another"
    assert person(tmp_path / "none", capsys, "rollback", "--reason", "x") == (2, nothing)
    assert not (tmp_path / "none").exists()
    only = nothing.replace("nothing has shipped as ratchet", "version 1 of ratchet is the first champion")
    assert person(shipped, capsys, "rollback", "--reason", "x") == (2, only)
    Night(shipped, "run/sft-b").decided("hold")
    assert person(shipped, capsys, "promote", "sft-b", "--reason", " ")[0] == 2
    code, said = person(shipped, capsys, "promote", "sft-b", "--reason", "the suite is broken")
    assert code == 0
    assert re.fullmatch(r"version 2 of ratchet is the champion, after version 1; its gate \(gate-\w+\) said hold", said)
    version = registry(shipped).aliases()["champion"]
    assert version.tags["ratchet.identity"] == identity(shipped, "b")
    assert version.tags["ratchet.verdict"] == "hold"
    line = r"promoted by \S+@\S+: the suite is broken \(its gate \(gate-\w+\) said hold\)$"
    assert re.search(line, version.description)
    code, said = person(shipped, capsys, "promote", "sft-c", "--reason", "better", "--anchor", "--json")
    assert json.loads(said)["gate"] is None and json.loads(said)["version"] == 3
    assert numbers(shipped) == {"champion": 3, "previous": 2, "anchor": 3}
    code, said = person(shipped, capsys, "rollback", "--reason", "it shouts")
    said_again = "version 2 of ratchet is the champion, after version 1"
    text = "version 2 of ratchet is the champion again, version 3 is withdrawn; the anchor still is version 3"
    assert (code, said) == (0, text)
    assert numbers(shipped) == {"champion": 2, "previous": 1, "anchor": 3}
    assert registry(shipped).version(3).description.endswith(": it shouts")
    assert json.loads(person(shipped, capsys, "rollback", "--reason", "more", "--json")[1])["version"] == 1
    assert numbers(shipped) == {"champion": 1, "anchor": 3}
    assert person(shipped, capsys, "promote", "sft-b", "--reason", "y")[1].startswith(said_again)


def test_what_a_person_withdrew_does_not_ship_by_itself_again(shipped, capsys):
    night = Night(shipped, "run/sft-b")
    night.ship()
    assert person(shipped, capsys, "rollback", "--reason", "x")[0] == 0
    again = night.ship()
    assert again.verdict == "hold" and "was withdrawn by a person" in again.report
    assert numbers(shipped) == {"champion": 1, "anchor": 1}


def test_a_store_id_ships_as_what_its_run_would_have(runs_dir, capsys):
    run = Night(runs_dir, "run/sft-a", registry={"name": "adder"}).run()
    run.record.update_step("gate", store="sft-a")
    run.record.release()
    said = person(runs_dir, capsys, "promote", "sft-a", "--reason", "x")[1]
    assert said.startswith("version 1 of adder is the champion")
    code, said = person(runs_dir, capsys, "rollback", "--reason", "x")
    assert code == 2 and "nothing has shipped as ratchet (--name tells which of: adder), so there is none" in said


def test_nor_under_another_gate(shipped, capsys):
    """What a person promoted, no gate has shipped; and a night whose gate looks at something else is another gate."""
    assert person(shipped, capsys, "promote", "sft-b", "--reason", "x")[0] == 0
    assert person(shipped, capsys, "rollback", "--reason", "it shouts")[0] == 0
    for night in (Night(shipped, "run/sft-b"), Night(shipped, "run/sft-b", gate={"min_gain": 0.1})):
        again = night.ship()
        assert again.verdict == "hold" and "version 2 of ratchet has these weights, and was withdrawn" in again.report
    assert numbers(shipped) == {"champion": 1, "anchor": 1}
    assert ship(shipped, "a") == "ship: version 1 of ratchet is the champion"


def test_a_champion_whose_alias_somebody_removed_is_not_said_to_be_there(shipped):
    registry(shipped).client.delete_registered_model_alias("ratchet", "champion")
    again = Night(shipped, "run/sft-a").ship()
    assert again.verdict == "hold" and "somebody removed the alias since; `ratchet promote` ships" in again.report


def test_however_often_it_was_noted_something_a_version_takes_another_note(shipped, capsys):
    for number in range(3):
        assert person(shipped, capsys, "promote", "sft-a", "--reason", f"{number} {'x' * 2400}")[0] == 0
    described = registry(shipped).version(1).description
    assert described.startswith("The gate 'gate' of ") and len(described) <= 5000  # more than most databases take
    assert re.search(r": 2 x+ \(its gate \(gate-\w+\) said ship\)$", described)


def test_an_outage_is_told_and_the_same_command_ships_later(runs_dir, dead_port):
    uri = f"http://127.0.0.1:{dead_port}"
    said = f"pipeline.gate: registry: cannot ask MLflow at {uri} what has shipped"
    with pytest.raises(UnreachableError, match=said):
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
