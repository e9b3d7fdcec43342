"""Tasks of lm-evaluation-harness as a suite: the same scores per row, what determines them, and what is refused."""

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from conf.errors import UserError
from conf.measuring import EvaluateConfig
from conf.schema import SuiteRole
from conf.suites import LmEvalConfig
from stages import harness
from stages.contract import Hardware, ModelRef, Suite
from stages.evaluate import run_evaluate
from stages.harness import harness_identity, prepare_tasks
from stages.harness_scores import harness_rows
from stages.suite_scores import LoadedModel

pytest.importorskip("lm_eval", reason='needs "ratchet[lm-eval]"')

CHOICE = """
task: local_choice
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/choice.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc}, {metric: acc_norm}, {metric: f1}]
"""
WORDS = """
task: local_words
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/words.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["|"], max_gen_toks: 5, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
filter_list:
  - {name: whole, filter: [{function: take_first}]}
  - {name: letter, filter: [{function: regex, regex_pattern: "(.)"}, {function: take_first}]}
"""
BOTH = ["local_choice", "local_words"]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two tasks and their rows."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, text in {"choice": CHOICE, "words": WORDS}.items():
        (folder / f"{name}.yaml").write_text(text.replace("FOLDER", str(folder)))
    choices = [[" one", " of many", " words"], [" x", " yy"]]
    write_rows(
        folder / "choice.jsonl",
        [{"question": f"{n}?", "choices": choices[n % 2], "label": n % 2} for n in range(9)],
    )
    write_rows(folder / "words.jsonl", [{"question": f"Say {n}.", "answer": "?"} for n in range(6)])
    return folder


@pytest.fixture
def model(tiny: ModelRef, hardware: Hardware) -> LoadedModel:
    return LoadedModel(tiny, hardware)


def directly(tasks: Path, tiny: ModelRef, **settings: Any) -> dict[str, Any]:
    """What `lm_eval.simple_evaluate` says of the tiny model, which it loads itself."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    from stages.identity import model_directory

    backend = HFLM(pretrained=str(model_directory(tiny)), device="cpu", dtype="float32", batch_size=4)
    manager = lm_eval.tasks.TaskManager(include_path=tasks, include_defaults=False)
    result = lm_eval.simple_evaluate(backend, tasks=BOTH, task_manager=manager, bootstrap_iters=0, **settings)
    samples: dict[str, Any] = result["samples"]
    return samples


@pytest.mark.parametrize(
    "settings", [{}, {"num_fewshot": 2, "apply_chat_template": True, "limit": 4}], ids=["plain", "chat"]
)
def test_scores_are_lm_evals_own(
    tasks: Path, tiny: ModelRef, model: LoadedModel, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda _: None)  # asks pip, compilers and drivers
    config = LmEvalConfig(tasks=BOTH, include_path=str(tasks), **settings)
    if not settings:  # let the model get every other one right
        replies = [row["completion"] for row in harness_rows(model, "x", config, batch_size=4)][9:]
        answers = [reply if n % 2 else "?" for n, reply in enumerate(replies)]
        write_rows(tasks / "words.jsonl", [{"question": f"Say {n}.", "answer": each} for n, each in enumerate(answers)])
    expected = directly(tasks, tiny, **settings)

    rows = harness_rows(model, "x", config, batch_size=4)
    choices, words = rows[: len(expected["local_choice"])], rows[len(expected["local_choice"]) :]
    assert [row["values"] for row in choices] == [
        {"acc": sample["acc"], "acc_norm": sample["acc_norm"]} for sample in expected["local_choice"]
    ]
    whole = [sample for sample in expected["local_words"] if sample["filter"] == "whole"]
    assert [(row["completion"], row["score"]) for row in words] == [
        (sample["resps"][0][0], sample["exact_match"]) for sample in whole
    ]
    assert settings or {row["score"] for row in words} == {row["score"] for row in choices} == {0, 1}
    assert [row["row"] for row in rows] == list(range(len(choices) + len(words)))
    assert all(row["score"] == row["values"]["acc"] for row in choices)


def test_the_metric_and_filter_that_are_asked_for(tasks: Path, model: LoadedModel) -> None:
    def scores(task: str, metric: str) -> list[float]:
        config = LmEvalConfig(tasks=[task], include_path=str(tasks), metric=metric)
        return [row["score"] for row in harness_rows(model, "x", config, batch_size=4)]

    assert scores("local_choice", "acc_norm") != scores("local_choice", "acc")
    whole = harness_rows(model, "x", LmEvalConfig(tasks=["local_words"], include_path=str(tasks)), batch_size=4)
    letters = [row["completion"][0] for row in whole]
    write_rows(tasks / "words.jsonl", [{"question": f"Say {n}.", "answer": each} for n, each in enumerate(letters)])
    assert scores("local_words", "exact_match,letter") == [1.0] * 6
    assert scores("local_words", "exact_match,whole") == [0.0] * 6


def test_an_evaluation_has_them_beside_other_suites(tasks: Path, context: Any, tiny: ModelRef) -> None:
    config = LmEvalConfig(tasks=BOTH, include_path=str(tasks), limit=5)
    rows = prepare_tasks("known", config, context.folder / "rows", context.folder)
    suite = Suite(role=SuiteRole.general, rows=rows, rewards={}, lm_eval=config)
    cfg = EvaluateConfig(n_samples=2, batch_size=4, recheck=7)
    result = run_evaluate(cfg, context("evaluate", models={"start": tiny}, suites={"known": suite}))
    table = parquet.read_table(result.artifacts["scores"]).to_pylist()
    alone = harness_rows(LoadedModel(tiny, context.defaults["hardware"]), "known", config, batch_size=4)
    assert [line["score"] for line in table] == [row["score"] for row in alone]
    assert [(line["prompt"], line["reference"]) for line in table[:2]] == [("0?", " one"), ("1?", " yy")]
    assert (table[5]["prompt"], table[5]["reference"]) == ("Say 0.", "?")
    assert result.metrics["rows.known"] == 10
    assert result.metrics["known.start"] == sum(row["score"] for row in alone) / 10
    assert result.metrics["noise.known"] >= 0
    first = harness_rows(LoadedModel(tiny, context.defaults["hardware"]), "known", config, batch_size=2, first=7)
    assert [row["completion"] for row in first] == [row["completion"] for row in alone[:7]]


def test_what_determines_the_scores(tasks: Path, tmp_path: Path) -> None:
    def identity(folder: Path, **settings: Any) -> dict[str, Any]:
        return harness_identity("x", LmEvalConfig(tasks=BOTH, include_path=str(folder), **settings), tmp_path)

    before = identity(tasks)
    assert identity(Path(shutil.copytree(tasks, tmp_path / "moved"))) == before
    assert identity(tasks, num_fewshot=1) != before
    write_rows(tasks / "words.jsonl", [{"question": "Say it.", "answer": "it"}])
    assert identity(tasks) != before
    assert before["lm-eval"]


def refusal(folder: Path, **settings: Any) -> str:
    """What is said of a suite that cannot be used."""
    with pytest.raises(UserError) as refused:
        prepare_tasks("x", LmEvalConfig(**{"tasks": BOTH, **settings}), folder / "rows", folder)
    return str(refused.value)


def test_what_is_refused_before_a_run(tasks: Path, tmp_path: Path) -> None:
    assert "lm_eval.include_path: there is no folder" in refusal(tmp_path, include_path="nowhere")
    message = refusal(tmp_path, include_path="tasks", metric="exact_match,word", tasks=["local_words"])
    assert "has no metric 'exact_match,word'; it has exact_match,whole, exact_match,letter" in message
    text = (tasks / "words.yaml").read_text()
    (tasks / "words.yaml").write_text(text.replace("higher_is_better: true", "higher_is_better: false"))
    assert "a lower exact_match is better" in refusal(tmp_path, include_path="tasks")
    shutil.move(tasks / "choice.jsonl", tmp_path / "choice.jsonl")
    (tasks / "choice.yaml").write_text(CHOICE.replace("FOLDER", str(tmp_path)))
    assert "put it below lm_eval.include_path" in refusal(tmp_path, include_path="tasks", tasks=["local_choice"])
    (tmp_path / "choice.jsonl").unlink()
    assert "local_choice: cannot be loaded: " in refusal(tmp_path, include_path="tasks", tasks=["local_choice"])
    assert not (tmp_path / "rows").exists()


def test_a_metric_of_all_rows_together_scores_no_row(tasks: Path, model: LoadedModel) -> None:
    config = LmEvalConfig(tasks=["local_choice"], include_path=str(tasks), metric="f1")
    with pytest.raises(UserError, match="'f1' is of all rows together; per row it has acc, acc_norm"):
        harness_rows(model, "x", config, batch_size=4)


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "version", lambda _: version("no-such-distribution"))
    assert 'pip install "ratchet[lm-eval]"' in refusal(tmp_path)


@pytest.mark.slow
def test_tasks_that_lm_eval_comes_with(tmp_path: Path) -> None:
    assert "there is no task 'arc_esay'; did you mean arc_easy" in refusal(tmp_path, tasks=["arc_esay"])
