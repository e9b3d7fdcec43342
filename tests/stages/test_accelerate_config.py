"""Config files of accelerate: what is passed on is what accelerate would pass on, and contradictions are refused."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import trl
import yaml
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

from conf.errors import ConfigError, UserError
from conf.training import Keep, ReinforceConfig, SFTConfig
from stages.accelerate_config import is_sharded, read_accelerate_config
from stages.contract import Hardware
from stages.preflight import PlannedStep, check_sharding

GPUS = Hardware(device="cuda", dtype="bfloat16", num_processes=8)
CPUS = Hardware(device="cpu", num_processes=2)
SHIPPED = Path(trl.__file__).parent / "accelerate_configs"
"""TRL's examples, which users start from; they are for 8 GPUs in bfloat16."""


@pytest.fixture(autouse=True)
def deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package were there; nothing of it is called."""
    monkeypatch.setattr("stages.accelerate_config.find_spec", lambda name: name)


def write(folder: Path, **values: Any) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.mark.parametrize("name", ["fsdp2", "zero1", "zero2", "zero3", "multi_gpu"])
def test_the_files_that_trl_ships_are_understood(name: str) -> None:
    environment = read_accelerate_config(SHIPPED / f"{name}.yaml", GPUS)
    assert is_sharded(environment) == (name in ("fsdp2", "zero3"))


@pytest.mark.parametrize("name", ["fsdp2", "zero2", "zero3"])
def test_what_is_passed_on_is_what_accelerate_passes_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for loading, which every rank does in full, because it folds."""
    theirs = accelerate_environment(SHIPPED / f"{name}.yaml")
    ours = read_accelerate_config(SHIPPED / f"{name}.yaml", GPUS)
    own = {"FSDP_CPU_RAM_EFFICIENT_LOADING": "false", "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false"}
    assert {key: value for key, value in ours.items() if key not in own} == {
        key: theirs[key] for key in ours if key not in own
    }
    assert all(ours[key] == value for key, value in own.items() if key in ours)


def accelerate_environment(path: Path) -> dict[str, str]:
    """What `accelerate launch --config_file` makes of a file."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    arguments: argparse.Namespace = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    arguments, *_ = _validate_launch_command(arguments)
    if arguments.use_deepspeed:
        arguments.deepspeed_fields_from_accelerate_config = ""  # of use beside a config file of DeepSpeed's own
        return dict(prepare_deepspeed_cmd_env(arguments)[1])
    return dict(prepare_multi_gpu_env(arguments))


def fsdp(**changes: Any) -> dict[str, Any]:
    return {"distributed_type": "FSDP", "num_processes": 8, "fsdp_config": {"fsdp_version": 2}, **changes}


WRONG: list[tuple[dict[str, Any], Hardware, str]] = [
    ({"num_processes": 8}, GPUS, "distributed_type: expected one of FSDP, DEEPSPEED, .* got None"),
    ({"distributed_type": "XLA"}, GPUS, "distributed_type: expected one of .* got 'XLA'"),
    (fsdp(num_processes=4), GPUS, "num_processes: 4, but hardware.num_processes is 8; set hardware.num_processes=4"),
    (fsdp(), CPUS, "num_processes: 8, but hardware.num_processes is 2"),
    (fsdp(num_processes=2), CPUS, "distributed_type: FSDP needs GPUs"),
    ({"distributed_type": "NO"}, GPUS, "NO does not go with hardware.num_processes=8; MULTI_GPU, FSDP or DEEPSPEED do"),
    ({"distributed_type": "MULTI_CPU"}, Hardware(), "MULTI_CPU does not go with hardware.num_processes=1; NO does"),
    ({"distributed_type": "MULTI_CPU"}, GPUS, "is for the CPU, but hardware.device is cuda"),
    (fsdp(mixed_precision="fp16"), GPUS, "mixed_precision: fp16, but hardware.dtype is bfloat16"),
    (fsdp(mixed_precision=False), GPUS, "mixed_precision: False, but hardware.dtype is bfloat16"),
    (fsdp(num_machines=2), GPUS, "num_machines: a stage trains on one machine"),
    (fsdp(gpu_ids="0,1"), GPUS, "gpu_ids: must be all; choose GPUs by"),
    (fsdp(fp8_config={}), GPUS, "fp8_config: is not understood; .*take it out"),
    (fsdp(fsdp_config={}), GPUS, "fsdp_config.fsdp_version: must be 2"),
    (fsdp(fsdp_config={"fsdp_versio": 2}), GPUS, "fsdp_versio: is not passed on; did you mean 'fsdp_version'"),
    (
        {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}},
        GPUS,
        "zero3_save_16bit_model: must be true",
    ),
    (
        {"distributed_type": "DEEPSPEED", "deepspeed_config": {"gradient_accumulation_steps": 4}},
        GPUS,
        "gradient_accumulation_steps: must be auto; use grad_accum",
    ),
]


@pytest.mark.parametrize(("values", "ours", "says"), WRONG)
def test_what_contradicts_or_is_not_understood_is_refused(
    values: dict[str, Any], ours: Hardware, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"^hardware\.accelerate_config: .*config\.yaml: .*{says}"):
        read_accelerate_config(write(tmp_path, **values), ours)


def test_what_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^hardware\.accelerate_config: cannot be read: No such file"):
        read_accelerate_config(tmp_path / "none.yaml", GPUS)
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match=r"bad\.yaml: cannot be read as YAML"):
        read_accelerate_config(tmp_path / "bad.yaml", GPUS)
    monkeypatch.setattr("stages.accelerate_config.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs the package deepspeed: pip install deepspeed"):
        read_accelerate_config(SHIPPED / "zero2.yaml", GPUS)


def test_several_cpu_processes_need_nothing_passed_on(tmp_path: Path) -> None:
    path = write(tmp_path, distributed_type="MULTI_CPU", num_processes=2, use_cpu=True, mixed_precision="no")
    assert read_accelerate_config(path, CPUS) == {}


def test_steps_that_need_whole_weights_are_refused() -> None:
    sharded = Hardware(accelerate=read_accelerate_config(SHIPPED / "fsdp2.yaml", GPUS))
    best = PlannedStep(name="warm", stage="sft", settings=SFTConfig(keep=Keep.best, eval_steps=1))
    rl = PlannedStep(name="rl", stage="reinforce", settings=ReinforceConfig())
    check_sharding([best, rl], GPUS)
    with pytest.raises(UserError, match=r"^sft\.keep: best is not possible for step 'warm'"):
        check_sharding([best], sharded)
    with pytest.raises(UserError, match=r"^hardware\.accelerate_config: step 'rl' \(reinforce\) samples from whole"):
        check_sharding([rl], sharded)
    check_sharding([PlannedStep(name="sft", stage="sft", settings=SFTConfig())], sharded)
