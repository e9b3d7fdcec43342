"""`ratchet evaluate` and `ratchet compare`: any model on any suite, nothing computed twice, no chance winners."""

import json
import shutil
from pathlib import Path

import pytest

from flows.cli import main
from flows.references import pipeline_records
from stages.score_intervals import mean_score, winner
from stages.suite_scores import RowScore


@pytest.fixture(scope="module")
def runs_dir(smoke, tmp_path_factory):
    """A copy of the finished smoke run."""
    return Path(shutil.copytree(smoke, tmp_path_factory.mktemp("evaluate") / "runs"))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A user's own configuration, with a suite whose replies are all right, and one that has no data."""
    folder = tmp_path_factory.mktemp("own")
    rows = folder / "colours.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"Colour {number}?", "reference": ""}) + "\n" for number in range(40))
    )
    texts = {
        "data/colours": f"source: {rows}\nheld_out: 1.0\n",
        "reward/anything": 'any: {type: regex, pattern: ".*"}\n',
        "suite/colours": "role: general\ndata: colours\nreward: anything\nmax_rows: 8\nmax_new_tokens: 2\n",
    }
    for name, text in texts.items():
        path = folder / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# @package {name.replace('/', '.')}\n{text}")
    return folder / "conf"


@pytest.fixture
def ask(runs_dir, capsys):
    """What a command prints as JSON, and what it says on the way."""

    def run(*arguments, code=0):
        capsys.readouterr()
        assert main([*arguments, "--runs-dir", str(runs_dir), "--json"]) == code
        shown = capsys.readouterr()
        return json.loads(shown.out) if code == 0 else None, shown.err

    return run


def test_evaluate_finds_what_its_pipeline_knows(ask, runs_dir):
    rows, said = ask("evaluate", "latest")
    record = pipeline_records(runs_dir)[-1]
    metrics = record["steps"]["evaluate"]["metrics"]
    last = record["id"]
    assert [(row["suite"], row["model"], row["rows"]) for row in rows] == [
        ("arithmetic", "base", 16),
        ("arithmetic", last, 16),
    ]
    assert [row["mean"] for row in rows] == [metrics["arithmetic.base"], metrics["arithmetic.reinforce"]]
    assert all(0 <= row["low"] <= row["mean"] <= row["high"] <= 1 and row["high"] > row["low"] for row in rows)
    assert said.splitlines() == [
        f"arithmetic, as {record['id']} has them:",
        "  base: its scores are known",
        f"  {last}: its scores are known",
    ]


def test_a_suite_of_ones_own_is_scored_once(ask, own, runs_dir, capsys):
    options = ("--suite", "colours", "--config-dir", str(own))
    rows, said = ask("evaluate", "latest/preference", *options)
    record = pipeline_records(runs_dir)[-1]
    step = f"{record['id']}/preference"
    assert [row["model"] for row in rows] == [f"start of {step}", step]  # sft comes before
    assert [row["mean"] for row in rows] == [1.0, 1.0]
    assert 0.5 < rows[0]["low"] < 1.0 == rows[0]["high"]  # 8 rows of 8
    assert "known" not in said
    store_id = record["steps"]["preference"]["store"]
    again, said = ask("evaluate", store_id[:-4], *options)
    assert again[1]["mean"] == 1.0 and said.count("known") == 2
    assert main(["evaluate", "latest/preference", *options, "--runs-dir", str(runs_dir)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split("  ")[0] == "suite" and "95% interval" in shown[0]
    assert shown[-1].split()[:3] == ["colours", step, "1.000"]


def test_a_model_that_no_run_left(ask, own):
    rows, said = ask("evaluate", "tiny:random", "--suite", "colours", "--config-dir", str(own))
    assert [(row["suite"], row["model"], row["rows"]) for row in rows] == [("colours", "tiny:random", 8)]
    same, said = ask("compare", "latest/sft", "base", "tiny:random", "--suite", "colours", "--config-dir", str(own))
    assert [row["run"].rsplit("/")[-1] for row in same] == ["sft", "base", "tiny:random"]
    assert "  tiny:random: its scores are known" in said  # it is the base


def test_compare_says_what_made_each_and_how_good_it_is(ask, runs_dir, capsys):
    rows, said = ask("compare", "latest", "champion")
    assert "champion: base (registry.fallback; there is none in ratchet yet)" in said
    assert [(row["stage"], row["start"], row["method"]) for row in rows] == [
        ("sft", "base", "sft"),
        ("preference", "sft", "dpo"),
        ("reinforce", "reinforce_probe", "grpo"),
        ("", "", ""),
    ]
    record = pipeline_records(runs_dir)[-1]
    metrics = record["steps"]["evaluate"]["metrics"]
    names = ("sft", "preference", "reinforce", "base")  # nothing has shipped: the fallback of champion
    assert [row["scores"]["arithmetic"]["mean"] for row in rows] == [metrics[f"arithmetic.{name}"] for name in names]
    assert rows[0]["rows"] > 100 and rows[1]["rows"] > 0 and rows[3]["rows"] is None
    assert rows[2]["step"] == 3 and "kl" in rows[2]
    assert main(["compare", "latest", "--runs-dir", str(runs_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and "arithmetic" in lines[0] and "*" not in lines[-1]
    assert lines[-1].startswith(f"{record['id']}/reinforce")


def test_known_computes_nothing(ask, runs_dir, tmp_path):
    suite = "# @package suite.new\ndata: arithmetic\nreward: exact_number\nmax_rows: 3\n"
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "new.yaml").write_text(suite)
    known, _ = ask(
        "compare", "latest/sft", "--suite", "arithmetic", "--suite", "new", "--config-dir", str(tmp_path), "--known"
    )
    assert list(known[0]["scores"]) == ["arithmetic"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "latst"], "latst: no run has that name in"),
        (["evaluate", "base"], "--suite: name the suites to score, e.g. --suite arithmetic: base is no run that has"),
        (["evaluate", "latest", "--suite", "nothing"], "suite: there is no 'nothing'; available: arithmetic"),
        (["compare", "latest/sft", "latest/nothing"], "has no step 'nothing'"),
    ],
)
def test_a_mistake_is_one_line(ask, arguments, message):
    _, said = ask(*arguments, code=2)
    assert message in said.splitlines()[-1]


def replies(scores):
    """One reply per row."""
    plain = {"suite": "task", "sample": 0, "model": "a", "values": {}, "completion": "", "characters": 0}
    plain |= {"truncated": False, "prompt_tokens": 1}
    return [RowScore(row=row, score=score, tokens=row, **plain) for row, score in enumerate(scores)]


def test_the_interval_of_a_mean():
    half = mean_score(replies([0.0, 1.0] * 50))
    assert (half.mean, half.rows, half.tokens) == (0.5, 100, 49.5)
    assert 0.39 < half.low < 0.41 and 0.59 < half.high < 0.61  # Wilson: 0.404 to 0.596
    none = mean_score(replies([0.0] * 100))
    assert (none.mean, none.low) == (0.0, 0.0) and 0.02 < none.high < 0.05  # the rule of three, at 97.5%
    assert (mean_score(replies([0.25])).low, mean_score(replies([0.25])).high) == (0.0, 1.0)


def test_the_best_is_a_winner_only_by_more_than_chance():
    low, close, high = [0.0] * 90 + [1.0] * 10, [1.0] * 48 + [0.0] * 52, [0.0] * 50 + [1.0] * 50
    assert winner({"low": low, "high": high}) == "high"
    assert winner({"low": low, "close": close, "high": high}) is None
    assert winner({"high": high}) is None
    nearly, apart = [*high[:90], *[0.0] * 10], [1.0] * 38 + [0.0] * 62
    assert winner({"nearly": nearly, "high": high}) == "high"
    assert winner({"apart": apart, "nearly": nearly, "high": high}) is None, "the third is not surely worse"
    assert winner({"one": [0.0], "other": [1.0]}) is None
