"""What changes a fingerprint, and what must not."""

import copy
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

import conf
import flows.fingerprint
import rewards
import stages
from conf.loader import dump
from conf.options import option
from conf.run import load_run
from conf.steps import STAGES
from flows.compose import compose_run
from flows.fingerprint import code_digest, digest, outcome_fields
from flows.workspace import Workspace
from stages.contract import StageResult

ROWS = "question,answer\n" + "".join(f"What is {n} + 1?,{n + 1}\n" for n in range(60))
TEMPLATE = "{% for message in messages %}{{ message['content'] }}<|end|>{% endfor %}"
OVERRIDES = (
    "experiment=smoke",
    "data.arithmetic.source=rows.csv",
    "~data.arithmetic.args",
    "+reward.arithmetic.mine={type: custom, path: mine}",
    "+reward.arithmetic.form={type: json, schema: form.json}",
    "pipeline.reinforce.start=base",
    "pipeline.evaluate.start=base",
    "+pipeline.reinforce.probe=false",  # it would have to run first
)


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    """The configuration, composed once."""
    composed: dict[str, Any] = dump(compose_run(OVERRIDES).sections)
    return composed


@pytest.fixture
def project(tmp_path):
    """A directory with data, and a reward of several files, two of them of one name."""
    files = {
        "rows.csv": ROWS,
        "form.json": "{}",
        "template.jinja": TEMPLATE,
        "mine/reward.py": "def reward(completion):\n    return len(completion) / 100\n",
        "mine/a/words.txt": "yes",
        "mine/b/words.txt": "no",
    }
    for name, text in files.items():
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(text)
    return tmp_path / "project"


@pytest.fixture
def fingerprint(values, project, tiny, monkeypatch):
    """The fingerprint of a step in the project; settings are changed by dotted key (None takes one away)."""

    def of(step: str, changed: dict[str, Any] | None = None, base_dir: Path = project) -> str:
        monkeypatch.chdir(base_dir)
        settings = copy.deepcopy(values)
        for key, value in (changed or {}).items():
            *path, last = key.split(".")
            section = settings
            for name in path:
                section = section.setdefault(name, {})
            section[last] = value
        return Workspace(load_run(settings), base_dir).inputs(step, {}).fingerprint

    return of


CHANGES = [
    ("sft", "sft.learning_rate", 1e-3),
    ("sft", "sft.lora.r", 4),
    ("sft", "sft.eval_steps", 1),
    ("sft", "sft.trainer", {"adam_beta2": 0.9}),
    ("sft", "seed", 1),
    ("sft", "held_out", 0.3),
    ("sft", "data.arithmetic.held_out", 0.3),
    ("sft", "hardware.threads", 99),
    ("sft", "hardware.dtype", "bfloat16"),
    ("sft", "hardware.num_processes", 2),
    ("reinforce", "hardware.num_processes", 2),
    ("sft", "model.chat_template", TEMPLATE),
    ("sft", "model.chat_template_kwargs", {"thinking": False}),
    ("sft", "model.stop_tokens", ["<|start|>"]),
    ("sft", "data.arithmetic.system", "Be brief."),
    ("sft", "data.arithmetic.max_rows", 50),
    ("sft", "pipeline.sft.set", {"max_length": 99}),
    ("reinforce", "reinforce.beta", 0.3),
    ("reinforce", "reinforce.difficulty.min_success", 0.1),
    ("reinforce", "reward.arithmetic.numeric.weight", 2.0),
    ("reinforce", "reward.arithmetic.extra", {"type": "exact"}),
    ("reinforce", "reward.arithmetic.form", {"type": "json", "schema": {"type": "object"}}),
    ("evaluate", "evaluate.batch_size", 1),
    ("evaluate", "suite.arithmetic.max_rows", 3),
    ("evaluate", "suite.arithmetic.split", "select"),
    ("evaluate", "suite.more", {"data": "arithmetic", "reward": "arithmetic"}),
    ("evaluate", "reward.exact_number.exact", {"type": "exact", "weight": 2.0}),
    ("evaluate", "data.arithmetic.system", "Be brief."),
]
KEEPS = [
    ("sft", "name", "other"),
    ("sft", "runs_dir", "elsewhere"),
    ("sft", "sft.save_steps", 3),
    ("sft", "sft.keep_checkpoints", 1),
    ("sft", "tracking", {"experiment": "other", "uri": "http://elsewhere"}),
    ("sft", "data.arithmetic.source", "./rows.csv"),
    ("sft", "reinforce.beta", 0.3),
    ("sft", "evaluate.batch_size", 1),
    ("sft", "reward.arithmetic.numeric.weight", 2.0),
    ("sft", "suite.arithmetic.max_rows", 3),
    ("sft", "pipeline.reinforce.start", "sft"),
    ("reinforce", "sft.learning_rate", 1e-3),
    ("reinforce", "suite.arithmetic.max_rows", 3),
    ("reinforce", "reward.arithmetic.mine", {"path": "./mine", "type": "custom"}),
    ("evaluate", "reinforce.beta", 0.3),
    ("evaluate", "hardware.num_processes", 2),
    ("evaluate", "pairs.samples", 3),
]


@pytest.mark.parametrize(("step", "key", "value"), CHANGES, ids=[f"{step} {key}" for step, key, _ in CHANGES])
def test_what_can_change_the_outcome_changes_the_fingerprint(fingerprint, step, key, value):
    assert fingerprint(step, {key: value}) != fingerprint(step)


@pytest.mark.parametrize(("step", "key", "value"), KEEPS, ids=[f"{step} {key}" for step, key, _ in KEEPS])
def test_what_cannot_does_not(fingerprint, step, key, value):
    assert fingerprint(step, {key: value}) == fingerprint(step)


def test_4_bits_count_for_what_trains_and_for_nothing_else(fingerprint):
    pytest.importorskip("bitsandbytes")
    in_4bit = {"hardware.load_in_4bit": True}
    assert fingerprint("sft", in_4bit) != fingerprint("sft")
    assert fingerprint("evaluate", in_4bit) == fingerprint("evaluate"), "it scores what ships: full precision"


def test_vllm_counts_and_where_its_server_is_does_not(fingerprint):
    here = {"mode": "server", "server_port": 8001}
    elsewhere = {"mode": "server", "server_base_url": "http://gpu1:8000"}
    lenient = {**here, "max_divergence": 1.0}
    assert fingerprint("reinforce", {"reinforce.vllm": here}) != fingerprint("reinforce")
    assert fingerprint("reinforce", {"reinforce.vllm": here}) == fingerprint("reinforce", {"reinforce.vllm": elsewhere})
    assert fingerprint("reinforce", {"reinforce.vllm": here}) != fingerprint("reinforce", {"reinforce.vllm": lenient})


READS = {"sft": "rows.csv", "reinforce": "rows.csv mine form.json", "evaluate": "rows.csv"}
EDITS = {
    "rows.csv": lambda file: file.write_text(ROWS + "What is 1 + 1?,2\n"),
    "form.json": lambda file: file.write_text("[]"),
    "mine/reward.py": lambda file: file.write_text(file.read_text() + "\n"),
    "mine/a/words.txt": lambda file: file.write_text("yes!"),
    "mine/a": lambda folder: folder.rename(folder.with_name("c")),
    "mine/b/words.txt": lambda file: file.unlink(),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_file_counts_for_the_steps_that_read_it(fingerprint, project, name):
    before = {step: fingerprint(step) for step in READS}
    EDITS[name](project / name)
    changed = {step for step in READS if fingerprint(step) != before[step]}
    assert changed == {step for step, read in READS.items() if name.split("/")[0] in read.split()}


def test_two_files_of_one_name_that_change_places_count(fingerprint, project):
    before = fingerprint("reinforce")
    (project / "mine/a/words.txt").write_text("no")
    (project / "mine/b/words.txt").write_text("yes")
    assert fingerprint("reinforce") != before


def test_a_moved_project_keeps_its_fingerprints(fingerprint, project):
    before = {step: fingerprint(step) for step in READS}
    moved = project.rename(project.with_name("moved"))
    assert {step: fingerprint(step, base_dir=moved) for step in READS} == before
    shutil.move(moved / "mine", moved / "deeper" / "mine")
    absolute = {
        "reward.arithmetic.mine": {"type": "custom", "path": str(moved / "deeper/mine")},
        "reward.arithmetic.form": {"type": "json", "schema": str(moved / "form.json")},
        "data.arithmetic.source": str(moved / "rows.csv"),
    }
    assert {step: fingerprint(step, absolute, moved) for step in READS} == before


def test_a_chat_template_counts_by_its_text_wherever_it_stands(fingerprint, project):
    before = fingerprint("sft", {"model.chat_template": TEMPLATE})
    assert fingerprint("sft", {"model.chat_template": "template.jinja"}) == before
    (project / "template.jinja").write_text(TEMPLATE + "\n")
    assert fingerprint("sft", {"model.chat_template": "template.jinja"}) != before


def test_the_files_of_a_program_count_by_the_name_it_finds_them_under(fingerprint, project):
    for name in ("x.txt", "y.txt", "check.sh"):
        (project / name).write_text(name)

    def with_files(**files: str) -> str:
        program = {"type": "command", "command": ["./check.sh", "{file}"], "files": files}
        return fingerprint("reinforce", {"reward.arithmetic.program": program})

    before = with_files(a="x.txt", b="y.txt")
    assert with_files(b="y.txt", a="./x.txt") == before
    assert with_files(a="y.txt", b="x.txt") != before
    (project / "check.sh").write_text("exit 1")
    assert with_files(a="x.txt", b="y.txt") != before


def test_names_of_data_and_rewards_do_not_count(fingerprint, values):
    renamed = {
        "data.sums": values["data"]["arithmetic"],
        "reward.good": values["reward"]["arithmetic"],
        "reward.exactly": values["reward"]["exact_number"],
        "pipeline.sft.data": "sums",
        "pipeline.reinforce.reward": "good",
        "suite.arithmetic.data": "sums",
        "suite.arithmetic.reward": "exactly",
    }
    for step in READS:
        assert fingerprint(step, renamed) == fingerprint(step)


def test_the_order_of_keys_and_comments_do_not_count(fingerprint, project, monkeypatch):
    texts = [
        "sft: {max_steps: 2, lora: {r: 4, alpha: 8}}\n",
        "# A comment.\nsft:\n  lora:\n    alpha: 8 # and another\n    r: 4\n  max_steps: 2\n",
    ]
    found = []
    (project / "conf/experiment").mkdir(parents=True)
    for text in texts:
        (project / "conf/experiment/mine.yaml").write_text(f"# @package _global_\ndefaults: [smoke]\n{text}")
        run = compose_run(["experiment=mine"], str(project / "conf"))
        found.append(Workspace(run, project).inputs("sft", {}).fingerprint)
    assert found[0] == found[1]
    assert digest({"a": 1, "b": {"c": 2, "d": 3}}) == digest({"b": {"d": 3, "c": 2}, "a": 1})
    values = dump(run.sections)
    backwards = {key: values[key] for key in reversed(values)}
    backwards["reward"] = {
        name: {key: rewards_[key] for key in reversed(rewards_)} for name, rewards_ in values["reward"].items()
    }
    step, results = "pairs", {"sft": StageResult(model=Workspace(run, project).models.base)}
    both = [Workspace(load_run(written), project).inputs(step, results) for written in (values, backwards)]
    assert list(both[0].rewards) == list(reversed(both[1].rewards))
    assert both[0].fingerprint == both[1].fingerprint


def test_settings_that_do_not_change_an_outcome_stay_out_at_any_depth():
    @dataclasses.dataclass
    class Inner:
        rank: int = option(1)
        log_every: int = option(10, outcome=False)

    @dataclasses.dataclass
    class Outer:
        inner: Inner = dataclasses.field(default_factory=Inner)
        label: str = option("x", outcome=False)

    assert outcome_fields(Outer()) == {"inner": {"rank": 1}}


@pytest.mark.parametrize("library", ["torch", "transformers", "trl", "peft"])
def test_another_version_of_a_library_counts(fingerprint, library, monkeypatch):
    before, installed = fingerprint("sft"), flows.fingerprint.version
    monkeypatch.setattr(flows.fingerprint, "version", lambda name: "9.9" if name == library else installed(name))
    assert fingerprint("sft") != before


REWARDED = {"audit", "probe", "pairs", "reinforce", "evaluate", "gate"}
CODE = {
    "stages/sft.py": {"sft"},
    "stages/grpo.py": {"reinforce"},
    "stages/evaluate.py": {"evaluate", "gate"},
    "stages/training.py": {"sft", "preference", "reinforce"},
    "stages/fold.py": set(STAGES) - {"audit"},
    "rewards/scoring.py": REWARDED,
    "rewards/worker_main.py": REWARDED,  # started with `python -m`
    "rewards/judge.py": REWARDED,  # started with `python -c`
    "conf/schema.py": set(STAGES),
}


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A copy of our packages, and what their code's digests are."""
    for package in (conf, rewards, stages):
        source = Path(str(package.__file__)).parent
        shutil.copytree(source, tmp_path / source.name, ignore=shutil.ignore_patterns("*.yaml", "__pycache__"))
    monkeypatch.setattr(stages, "__file__", str(tmp_path / "stages" / "__init__.py"))
    return lambda: {stage: code_digest.__wrapped__(f"stages.{stage}") for stage in STAGES}


def test_code_counts_for_the_stages_that_it_is_part_of(code, tmp_path):
    before = code()
    for name, counts_for in CODE.items():
        original = (tmp_path / name).read_text()
        (tmp_path / name).write_text(original + "\n# edited\n")
        after = code()
        assert {stage for stage in STAGES if after[stage] != before[stage]} == counts_for, name
        (tmp_path / name).write_text(original)


def test_a_model_out_of_the_store_is_written_to_in_this_runs_format(values, tmp_path, tiny):
    settings = copy.deepcopy(values)
    settings["model"]["chat_template"] = TEMPLATE
    workspace = Workspace(load_run(settings), tmp_path)
    results: dict[str, StageResult] = {}
    workspace.finish("sft", StageResult(model=tiny), results)
    assert tiny.config.chat_template is None
    assert results["sft"].model.config.chat_template == TEMPLATE
    assert results["sft"].model.identity == tiny.identity
