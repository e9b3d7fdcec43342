"""A mistake is answered at the door: exit code 2, one line that says where and what would be right, nothing begun."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from flows.cli import main
from flows.store import Store
from stages.adapters import read_adapter
from stages.contract import ModelRef, StageResult
from tests.flows.mistakes import configuration, data, models, rewards
from tests.flows.mistakes.project import PROJECT, ROWS, Mistake, command, override, write

RUN = ["run", "experiment=mine"]
GROUPS = {
    "value": configuration.VALUES,
    "sweep": configuration.SWEEPS,
    "pipeline": configuration.PIPELINE,
    "place": configuration.PLACES,
    "trainer": configuration.TRAINER,
    "file": data.FILES,
    "mapping": data.MAPPING,
    "row": data.NEEDS,
    "reward": rewards.SETTINGS,
    "custom": rewards.CUSTOM,
    "score": rewards.SCORE,
    "model": models.DIRECTORY,
    "chat": models.CHAT,
    "length": models.LENGTHS,
}
CASES = [
    pytest.param(each, id=f"{group}-{each.name}".replace(" ", "_")) for group, all_ in GROUPS.items() for each in all_
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project, as the current directory of a process that can neither begin a run nor load weights."""
    write(tmp_path, PROJECT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RATCHET_RUNS_DIR", "runs")
    monkeypatch.setitem(sys.modules, "flows.posttrain", None)  # importing it fails: exit code 1
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", None)
    return tmp_path


def refuse(mistake: Mistake, folder: Path, capsys: Any) -> str:
    """See that a mistake is refused as it should be; returns the message."""
    arguments = mistake.arguments(folder)
    capsys.readouterr()
    code = main(arguments)
    message: str = capsys.readouterr().err
    assert code == 2, message
    assert message.startswith("ratchet: ") and message.count("\n") == 1 and len(message) < 600, message
    assert all(part in message for part in mistake.says), message
    left = [path.name for pattern in ("*", "*/*") for path in (folder / "runs").glob(pattern) if path.suffix != ".lock"]
    harmless = {"store", "FORMAT", "data", "multirun.yaml"}  # the last one is Hydra's
    assert {name.split("-")[0] for name in left} <= harmless, left
    return message


@pytest.mark.parametrize("mistake", CASES)
def test_a_mistake_is_refused(mistake: Mistake, folder: Path, capsys: Any) -> None:
    refuse(mistake, folder, capsys)


def finished_run(runs_dir: Path, model: ModelRef) -> None:
    """Leave a finished step whose model has one adapter, which by its lineage belongs on another base."""
    store = Store(runs_dir)
    store.prepare()
    entry = store.entry("sft", "abc")
    other = {"base": {"id": "other", "sha256": "0" * 64}, "adapters": []}
    files = {"adapter_model.safetensors": "weights", "adapter_config.json": "{}", "lineage.json": json.dumps(other)}
    write(entry.path / "adapter", files)
    result = StageResult(model=model.with_adapter(read_adapter(entry.path / "adapter")))
    entry.write_result(result, 1.0)


START = [*RUN, "+pipeline.sft.start=run/sft-abc"]


@pytest.mark.parametrize("base", ["", "of another base"])
def test_a_start_on_another_base(base: str, folder: Path, tiny: ModelRef, capsys: Any) -> None:
    finished_run(folder / "runs", replace(tiny, sha256="f" * 64) if base else tiny)
    assert main(START) == 2
    message = capsys.readouterr().err
    if base:
        assert message.startswith("ratchet: pipeline.sft: run/sft-abc: was trained from ") and "set model" in message
    else:
        assert "belongs on another base: other (000000000000), not tiny:random" in message
    assert not (folder / "runs" / "pipelines").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(folder: Path, capsys: Any) -> None:
    refuse(override("", "hardware.device=cuda", says=["hardware.device: cuda cannot", "=cpu"]), folder, capsys)


@pytest.mark.parametrize(
    ("package", "setting", "extra"),
    [("bitsandbytes", "hardware.load_in_4bit=true", "4bit"), ("vllm", "reinforce.vllm.mode=colocate", "vllm")],
)
def test_an_extra_that_is_not_installed(
    package: str, setting: str, extra: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    says = [setting.split("=")[0], "is not installed", f'pip install "ratchet[{extra}]"']
    refuse(override("", setting, says=says), folder, capsys)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_vllm_without_a_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    write(folder, {"installed/vllm.py": ""})
    monkeypatch.syspath_prepend(folder / "installed")
    says = ["step 'reinforce': reinforce.vllm.mode: server needs a GPU", "hardware.device is cpu", "ratchet[vllm]"]
    refuse(override("", "reinforce.vllm.mode=server", says=says), folder, capsys)


def test_a_package_that_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "prefect_ray", None)
    arguments = ["run", "-m", "experiment=mine", "seed=1,2", "orchestration.runner=ray"]
    refuse(command("ray", *arguments, says=["orchestration.runner: ray", 'pip install "ratchet[ray]"']), folder, capsys)


def test_the_project_itself_is_fine(folder: Path, capsys: Any) -> None:
    """Only what each case changes is wrong: the untouched project comes as far as the flow, which cannot begin here."""
    assert main(RUN) == 1
    assert "flows.posttrain" in capsys.readouterr().err


def test_a_byte_order_mark_is_no_mistake(folder: Path, capsys: Any) -> None:
    mark = b"\xef\xbb\xbf"
    write(folder, {"rows.jsonl": mark + ROWS.encode(), "rewards.yaml": mark + rewards.RIGHT.encode()})
    write(folder, {"replies.jsonl": mark + rewards.REPLY.encode()})
    assert main(["preview", "experiment=mine", "--rows", "1"]) == 0
    assert "What is 1 + 1?" in capsys.readouterr().out
    assert main(["score", "--rewards", "rewards.yaml", "--rows", "replies.jsonl"]) == 0
