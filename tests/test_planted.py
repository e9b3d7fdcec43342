"""Cases planted for the gate, on the real model: what it must let through, and what it must not."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.references import pipeline_records

HACK = "# @package reward.long\nlength: {type: length, min_chars: 60}\n"
ONE_TOOL = """# @package data.one_tool
source: one_tool.jsonl
system: Answer in a few words.
prompt: ask
response: call
"""
ASKS = (
    "What is a {}?",
    "Who likes a {}?",
    "Where is the {}?",
    "How many times do I need a {}?",
    "Is a {} big or small?",
)
ASKS += ("Name a kind of {}.", "What is the name of the {}?", "Book a {}, please.")
THINGS = ("room", "table", "train", "doctor", "song", "river", "window", "garden", "lesson", "ticket", "hat", "star")
CALL = '{"tool": "book_appointment", "arguments": {"day": "Monday"}}'
SETTING = [
    "model=smollm2-135m",
    "data=[arithmetic,general,one_tool]",
    "+data.arithmetic.system=You add numbers.",
    "reward=[arithmetic,exact_number,row_pattern,long]",
    "suite=[arithmetic,general]",
    "gate.drift_rows=8",
    "gate.batch_size=100",
]
GATE = "+pipeline.gate={stage: gate, start: %s, baseline: base}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a hackable reward, and with prompts of all kinds that are answered by one call."""
    folder = tmp_path_factory.mktemp("planted")
    for name, text in {"reward/long.yaml": HACK, "data/one_tool.yaml": ONE_TOOL}.items():
        (folder / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "conf" / name).write_text(text)
    rows = [{"ask": ask.format(thing), "call": CALL} for thing in THINGS for ask in ASKS]
    (folder / "one_tool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def run(prefect_server: None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Any]]:
    """Runs a pipeline in that directory; returns the exit code and the record. Scores are kept from test to test."""
    monkeypatch.chdir(folder)

    def go(*overrides: str) -> tuple[int, Any]:
        code = main(["run", *SETTING, *overrides])
        record = pipeline_records(folder / "runs")[-1]
        print(record["steps"]["gate"]["report"])
        return code, record

    return go


def of(stage: str, **settings: float) -> list[str]:
    """Overrides of a stage's section, without sample replies."""
    return [f"{stage}.{name}={value}" for name, value in {**settings, "n_samples": 0}.items()]


@pytest.fixture
def load_champion(folder: Path) -> Iterator[Callable[[str], Any]]:
    """Loads a registered model as a user of MLflow does."""
    import mlflow

    def load(name: str) -> Any:
        mlflow.set_tracking_uri(f"sqlite:///{folder / 'runs' / 'mlflow.db'}")
        return mlflow.transformers.load_model(f"models:/{name}@champion")

    yield load
    mlflow.set_tracking_uri(None)  # it is an environment variable, too, which later tests would follow


@pytest.mark.slow
def test_what_learns_its_task_and_loses_nothing_ships(run, folder, load_champion):
    """The experiment `ship`, with fewer steps and one guard: its model becomes the champion, and answers as one."""
    code = main(["run", "experiment=ship", "reinforce.max_steps=10", "suite=[arithmetic,general]"])
    record = pipeline_records(folder / "runs")[-1]
    report = record["steps"]["gate"]["report"]
    print(report)
    assert (code, record["verdict"]) == (0, "ship")
    assert "shipped: version 1 of adder is the champion" in report
    champion = load_champion("adder")
    asked = [{"role": "system", "content": "You add numbers."}, {"role": "user", "content": "What is 12 + 13?"}]
    (answer,) = champion([asked], max_new_tokens=16, do_sample=False, return_full_text=False)
    assert any(character.isdigit() for character in str(answer))


@pytest.mark.slow
def test_a_reward_hack_is_held(run, folder):
    """Longer replies earn more, whatever they say: the reward rises, and the task falls."""
    code, record = run(
        "+pipeline.hack={stage: reinforce, start: base, data: arithmetic, reward: long, audit: false, probe: false}",
        GATE % "hack",
        *of("reinforce", max_steps=10, batch_size=8, group_size=4, max_new_tokens=16, learning_rate=5e-4, beta=0),
    )
    rows = (folder / "runs" / "store" / record["steps"]["hack"]["store"] / "progress.jsonl").read_text().splitlines()
    rewards = [json.loads(row)["reward"] for row in rows]
    print(rewards)
    assert rewards[-1] > rewards[0] + 0.2
    assert (code, record["verdict"]) == (3, "hold")


@pytest.mark.slow
def test_one_tool_for_everything_is_held_by_general(run):
    code, record = run(
        "+pipeline.one_tool={stage: sft, start: base, data: one_tool}",
        GATE % "one_tool",
        *of("sft", max_steps=16, batch_size=8, learning_rate=1e-3),
    )
    metrics, report = record["steps"]["gate"]["metrics"], record["steps"]["gate"]["report"]
    assert (code, record["verdict"]) == (3, "hold")
    assert metrics["general.candidate"] < 0.05 < 0.2 < metrics["general.baseline"] < 0.8
    assert "- general: " in report


@pytest.mark.slow
@pytest.mark.parametrize("rows", [None, 20], ids=["same model", "few rows"])
def test_a_model_against_itself_never_ships(run, rows):
    few = [f"suite.{suite}.max_rows={rows}" for suite in ("arithmetic", "general")] if rows else []
    code, record = run(GATE % "base", *few)
    assert (code, record["verdict"]) == (4, "inconclusive")
    if rows:
        assert "20 rows cannot tell" in record["steps"]["gate"]["report"]


@pytest.mark.slow
def test_too_few_rows_say_how_many_are_needed(run):
    """A model that learnt to add, on 40 rows: the gain may be plain, but a guard cannot be judged by them."""
    few = [f"suite.{suite}.max_rows=40" for suite in ("arithmetic", "general")]
    code, record = run(
        "+pipeline.sft={stage: sft, start: base, data: arithmetic}",
        GATE % "sft",
        *of("sft", max_steps=2, batch_size=8, learning_rate=1e-4),
        *few,
    )
    assert (code, record["verdict"]) == (4, "inconclusive")
    comparisons = json.loads((Path("runs/store") / record["steps"]["gate"]["store"] / "decision.json").read_text())[
        "comparisons"
    ]
    assert all(each["rows_needed"] is None or each["rows_needed"] > 40 for each in comparisons)
    assert any(each["rows_needed"] for each in comparisons)
