"""The command line: fast help, clear refusals, exit codes, and every command on a finished run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import main
from flows.scores.reward_report import histogram, report

COMMANDS = ["run", "plan", "audit", "probe", "preview", "score", "runs", "status", "cancel", "progress", "generate"]
COMMANDS += ["evaluate", "compare", "export", "promote", "rollback", "bundle", "import", "deploy"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_has_help(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "-h"])
    assert stopped.value.code == 0
    assert "usage: ratchet" in capsys.readouterr().out


HEAVY = ("torch", "transformers", "prefect", "mlflow", "datasets", "trl", "peft")


@pytest.mark.parametrize(
    "arguments",
    [
        ["-h"],
        ["run", "-h"],
        ["run", "experiment=smoke", "reinforce.betta=1"],
        ["plan", "experiment=smoke"],
        ["audit", "experiment=smoke"],
        ["deploy", "experiment=smoke", "--cron", "0 2 * * *", "reinforce.betta=1"],
    ],
    ids=" ".join,
)
def test_help_errors_and_plan_load_nothing_heavy(arguments, tmp_path):
    code = (
        "import sys; from flows.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, *arguments, *([f"runs_dir={tmp_path}"] if len(arguments) > 1 else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "HEAVY []", done.stderr


def test_folders_of_a_project_are_not_taken_for_our_packages(tmp_path):
    """Prefect's worker has the project on the path, and before us; its `conf` is a folder, and no package."""
    for name in ("conf", "rewards"):
        (tmp_path / name).mkdir()
    code = "import conf, rewards; print(conf.__file__, rewards.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "None" not in done.stdout, done.stdout + done.stderr


BAD = [
    (["plan", "experiment=smoke", "data.arithmetic.source=nowhere.csv"], "nowhere.csv"),
    *((["progress", text, "--runs-dir", "{tmp}"], "no run has that name") for text in ("", "*", "sft-*", "/", "../x")),
    (["run", "-m", "experiment=smoke", "runs_dir={tmp}/file", "seed=1,2"], "runs_dir: cannot write to"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(arguments[:3]) for arguments, _ in BAD])
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main([item.format(tmp=tmp_path) if "{tmp}" in item else item for item in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ratchet: ") and error.count("\n") == 1
    assert message in error


def test_an_unknown_option_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["run", "experiment=smoke", "--nosuch"])
    assert stopped.value.code == 2
    assert "--nosuch" in capsys.readouterr().err


def test_runs_lists_the_pipeline(smoke, capsys):
    assert main(["runs", "--runs-dir", str(smoke)]) == 0
    assert "smoke-" in capsys.readouterr().out
    assert main(["runs", "--runs-dir", str(smoke), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "smoke"


def test_progress_prints_the_rows(smoke, capsys):
    assert main(["progress", "latest/reinforce", "--runs-dir", str(smoke), "--json"]) == 0
    assert [row["step"] for row in json.loads(capsys.readouterr().out)] == [1, 2, 3]
    assert main(["progress", "latest/evaluate", "--runs-dir", str(smoke)]) == 2
    assert "logged no rows" in capsys.readouterr().err


def test_a_run_can_be_named_by_a_prefix_of_its_store_id(smoke, capsys):
    assert main(["progress", "sft-", "--runs-dir", str(smoke)]) == 0
    assert "loss" in capsys.readouterr().out
    assert main(["generate", "p", "hi", "--runs-dir", str(smoke)]) == 2
    assert "could be any of pairs-" in capsys.readouterr().err


def test_generate_answers_with_the_model_its_start_and_the_base(smoke, capsys):
    prompt = "What is 12 + 34? Reply with just the number."
    replies = []
    for option in ([], ["--start"], ["--base"]):
        assert main(["generate", "latest/sft", prompt, "--runs-dir", str(smoke), "--max-new-tokens", "8", *option]) == 0
        replies.append(capsys.readouterr().out)
    assert replies[1] == replies[2]  # sft started from the base


def test_compare_puts_steps_side_by_side(smoke, capsys):
    assert main(["compare", "latest/sft", "latest/reinforce", "--runs-dir", str(smoke), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["stage"] for row in rows] == ["sft", "reinforce"]
    assert [row["adapters"] for row in rows] == [1, 3]
    assert all("arithmetic" in row["scores"] for row in rows)
    assert main(["compare", "latest", "--runs-dir", str(smoke)]) == 0
    assert "preference" in capsys.readouterr().out


def test_preview_shows_rows_as_the_model_sees_them(smoke, capsys):
    assert main(["preview", "experiment=smoke", f"runs_dir={smoke}", "--rows", "2"]) == 0
    shown = capsys.readouterr().out
    assert "Reply with just the number." in shown and "assistant" in shown


def test_score_shows_the_spread_and_writes_one_object_per_row(tmp_path, capsys):
    rewards, rows, out = tmp_path / "rewards.yaml", tmp_path / "rows.jsonl", tmp_path / "scores.jsonl"
    rewards.write_text("numeric: {type: numeric, weight: 1.0}\nlength: {type: length, max_chars: 4, weight: 0.5}\n")
    rows.write_text('{"completion": "69", "reference": "69"}\n{"completion": "70", "reference": ""}\n')
    assert main(["score", "--rewards", str(rewards), "--rows", str(rows), "--out", str(out)]) == 0
    first, second = [json.loads(line) for line in out.read_text().splitlines()]
    expected = {"row": 1, "total": 1.5, "rewards": {"numeric": 1.0, "length": 1.0}, "errors": {}, "completion": "69"}
    expected["explanations"] = {"numeric": "69 equals 69", "length": "2 characters"}
    assert first == expected
    assert second["total"] is None and set(second["errors"]) == {"numeric"}
    shown = capsys.readouterr().out
    assert re.search(r"^numeric +1 +1 +1\.000", shown, re.MULTILINE), shown
    assert re.search(r"^best +1 +1\.5 +69 +numeric 1 \(69 equals 69\)  length 1 \(2 char", shown, re.MULTILINE), shown
    assert re.search(r"^failed +2 .*reference", shown, re.MULTILINE), shown
    assert main(["score", "--rewards", str(rewards), "--rows", str(rows), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == expected


def test_no_row_is_shown_as_both_best_and_worst():
    for n_rows, best, worst in [(1, [0], []), (2, [0], [1]), (3, [0, 1], [2]), (9, [0, 1, 2], [8, 7, 6])]:
        rows = [
            {"row": i, "total": -i, "rewards": {}, "errors": {}, "explanations": {}, "completion": ""}
            for i in range(n_rows)
        ]
        shown = [line.split()[:2] for line in report(rows).splitlines() if line.startswith(("best", "worst"))]
        assert shown == [["best", str(i)] for i in best] + [["worst", str(i)] for i in worst]


@pytest.mark.parametrize(
    ("values", "bars"),
    [([2.0], "█·········"), ([0.0, 1.0], "█········█"), ([0.0] * 8 + [0.5] * 2 + [1.0], "█····▂···▁")],
)
def test_a_histogram_has_a_bar_per_tenth(values, bars):
    assert histogram(values) == bars


def test_scores_that_cannot_be_written_are_bad_input(tmp_path, capsys):
    rewards, rows = tmp_path / "rewards.yaml", tmp_path / "rows.jsonl"
    rewards.write_text("numeric: {type: numeric}\n")
    rows.write_text('{"completion": "69", "reference": "69"}\n')
    arguments = ["score", "--rewards", str(rewards), "--rows", str(rows), "--out", str(tmp_path / "no" / "out")]
    assert main(arguments) == 2
    assert "--out: cannot write" in capsys.readouterr().err


def test_half_a_surrogate_pair_is_scored_and_written_as_its_escape(tmp_path, capsys):
    rewards, rows, out = tmp_path / "rewards.yaml", tmp_path / "rows.jsonl", tmp_path / "scores.jsonl"
    rewards.write_text("exact: {type: exact}\n")
    rows.write_text(json.dumps({"completion": "a\ud800", "reference": "a\ud800"}) + "\n")
    assert main(["score", "--rewards", str(rewards), "--rows", str(rows), "--out", str(out)]) == 0
    assert json.loads(out.read_text(encoding="utf-8"))["completion"] == "a\ud800"
    assert r"a\ud800" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rewards_text", "rows_text", "named"),
    [
        ("exact: {type: exact}", '{"completion": ' + "[" * 100_000, "rows.jsonl, line 1: is nested too deeply"),
        ("exact: " + "[" * 20_000, '{"completion": "4"}', "rewards.yaml: is nested too deeply"),
    ],
    ids=["rows", "rewards"],
)
def test_files_to_score_that_are_nested_too_deeply_are_bad_input(rewards_text, rows_text, named, tmp_path, capsys):
    rewards, rows = tmp_path / "rewards.yaml", tmp_path / "rows.jsonl"
    rewards.write_text(f"{rewards_text}\n")
    rows.write_text(f"{rows_text}\n")
    assert main(["score", "--rewards", str(rewards), "--rows", str(rows)]) == 2
    assert named in capsys.readouterr().err


def test_a_damaged_record_does_not_hide_the_others(tmp_path, capsys):
    good = {"id": "good-1", "state": "failed", "verdict": None, "started": "2026-01-01T00:00:00", "steps": {}}
    for name, text in {"good-1": json.dumps(good), "bad-1": "{", "bad-2": "[]", "bad-3": '{"id": "x"}'}.items():
        (tmp_path / "pipelines" / name).mkdir(parents=True)
        (tmp_path / "pipelines" / name / "pipeline.json").write_text(text)
    assert main(["runs", "--runs-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "good-1" in shown.out and shown.err.count("is damaged, and left out") == 3


def test_the_packages_are_ours():
    """A package called `rewards` elsewhere on the path must not shadow ours."""
    import conf
    import flows
    import rewards
    import stages

    root = Path(__file__).parents[2]
    assert {Path(str(package.__file__)).parents[1] for package in (conf, flows, rewards, stages)} == {root}
