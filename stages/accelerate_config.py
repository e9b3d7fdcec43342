"""FSDP and DeepSpeed settings from a config file of accelerate, checked without loading accelerate or torch.

`accelerate launch` turns such a file into environment variables, which transformers' trainer reads. The processes are
started by Ratchet (see `flows.ranks`), so the same is done here. How many there are, the number type, batches, learning
rate and clipping are said by Ratchet's own keys; a file that says otherwise is refused.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.errors import ConfigError
from conf.loader import suggestion
from conf.textfile import read_text

if TYPE_CHECKING:
    from stages.contract import Hardware

KEY = "hardware.accelerate_config"

_TYPES = {"FSDP": "fsdp_config", "DEEPSPEED": "deepspeed_config", "MULTI_GPU": None, "MULTI_CPU": None, "NO": None}
"""Kinds of distribution that are known, and the section with their settings."""

_PRECISION = {"no": "float32", "false": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Number types by accelerate's name; YAML reads a bare `no` as false."""

_LAUNCH = (
    "compute_environment", "debug", "distributed_type", "downcast_bf16", "enable_cpu_affinity", "gpu_ids",
    "machine_rank", "main_process_ip", "main_process_port", "main_training_function", "mixed_precision", "num_machines",
    "num_processes", "rdzv_backend", "same_network", "tpu_env", "tpu_use_cluster", "tpu_use_sudo", "use_cpu",
)  # fmt: skip
"""Keys about how processes are started: Ratchet does that, so they are compared with its own or of no effect."""

_FSDP = {
    "fsdp_version": "FSDP_VERSION",
    "fsdp_auto_wrap_policy": "FSDP_AUTO_WRAP_POLICY",
    "fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP",
    "fsdp_min_num_params": "FSDP_MIN_NUM_PARAMS",
    "fsdp_reshard_after_forward": "FSDP_RESHARD_AFTER_FORWARD",
    "fsdp_offload_params": "FSDP_OFFLOAD_PARAMS",
    "fsdp_activation_checkpointing": "FSDP_ACTIVATION_CHECKPOINTING",
    "fsdp_state_dict_type": "FSDP_STATE_DICT_TYPE",
    "fsdp_cpu_ram_efficient_loading": "FSDP_CPU_RAM_EFFICIENT_LOADING",
}
_DEEPSPEED = {
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed_multinode_launcher": None,  # there is one node
    "gradient_accumulation_steps": None,
}
"""Settings that are passed on, and the variables in which accelerate looks for them."""

_OURS = {
    "FSDP": {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "false"},
    "DEEPSPEED": {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false"},
}
"""Every rank folds the whole start model before it is divided, so none may load an empty or divided one."""


def read_accelerate_config(path: Path, hardware: "Hardware") -> dict[str, str]:
    """The environment variables that a config file stands for.

    Args:
        path: The file: YAML, as `accelerate config` writes it.
        hardware: What it must not contradict.

    Raises:
        ConfigError: The file cannot be read, has keys or values that are not understood, or contradicts the hardware.
    """
    values = _parsed(path)
    kind = "NO" if values.get("distributed_type") is False else values.get("distributed_type")  # YAML's NO is false
    if not isinstance(kind, str) or kind not in _TYPES:
        raise _wrong(path, f"distributed_type: expected one of {', '.join(_TYPES)}, got {kind!r}")
    sections = {key for key in _TYPES.values() if key}
    for key in values:
        if key not in (*_LAUNCH, *sections):
            raise _wrong(path, f"{key}: is not understood; {suggestion(str(key), [*_LAUNCH, *sections])}take it out")
    _check_launch(path, {**values, "distributed_type": kind}, hardware)
    section = _TYPES[kind]
    if section is None:
        return {}
    known = _FSDP if kind == "FSDP" else _DEEPSPEED
    settings = values.get(section) or {}
    if not isinstance(settings, dict):
        raise _wrong(path, f"{section}: expected a mapping, got {settings!r}")
    for key, value in settings.items():
        if key not in known:
            raise _wrong(path, f"{section}.{key}: is not passed on; {suggestion(str(key), known)}take it out")
        if isinstance(value, dict | list):
            raise _wrong(path, f"{section}.{key}: expected one value, got {value!r}")
    _check_section(path, kind, settings)
    given = {
        variable: _text(settings[key]) for key, variable in known.items() if variable and settings.get(key) is not None
    }
    return {**given, **_OURS[kind]}


def is_sharded(environment: Mapping[str, str]) -> bool:
    """Whether the weights of a model in training are divided among the ranks."""
    return "ACCELERATE_USE_FSDP" in environment or environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3"


def _parsed(path: Path) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load(read_text(path, KEY))
    except yaml.YAMLError as error:
        raise _wrong(path, f"cannot be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise _wrong(path, "expected a mapping, as `accelerate config` writes it")
    return values


def _check_launch(path: Path, values: Mapping[str, Any], hardware: "Hardware") -> None:
    """Compare what Ratchet's own keys say, too."""
    kind, device = values["distributed_type"], hardware.device
    processes = values.get("num_processes", hardware.num_processes)
    if processes != hardware.num_processes:
        ours = f"hardware.num_processes is {hardware.num_processes}"
        raise _wrong(path, f"num_processes: {processes}, but {ours}; set hardware.num_processes={processes}")
    if (kind == "NO") != (hardware.num_processes == 1):
        ours = f"hardware.num_processes={hardware.num_processes}"
        fits = "NO does" if hardware.num_processes == 1 else "MULTI_GPU, FSDP or DEEPSPEED do"
        raise _wrong(path, f"distributed_type: {kind} does not go with {ours}; {fits}")
    if kind in ("FSDP", "DEEPSPEED", "MULTI_GPU") and device != "cuda":
        raise _wrong(path, f"distributed_type: {kind} needs GPUs (accelerate leaves it out on others), not {device}")
    if (kind == "MULTI_CPU" or values.get("use_cpu")) and device != "cpu":
        raise _wrong(path, f"is for the CPU, but hardware.device is {device}; set hardware.device=cpu")
    precision = values.get("mixed_precision")
    if precision is not None and _PRECISION.get(_text(precision)) != hardware.dtype:
        raise _wrong(path, f"mixed_precision: {precision}, but hardware.dtype is {hardware.dtype}; make them agree")
    if values.get("num_machines", 1) != 1:
        raise _wrong(path, "num_machines: a stage trains on one machine; set it to 1")
    if values.get("gpu_ids", "all") != "all":
        raise _wrong(path, "gpu_ids: must be all; choose GPUs by the environment variable CUDA_VISIBLE_DEVICES")
    if values.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        raise _wrong(path, "compute_environment: only LOCAL_MACHINE is known")


def _check_section(path: Path, kind: str, settings: Mapping[str, Any]) -> None:
    if kind == "FSDP" and settings.get("fsdp_version") != 2:
        raise _wrong(path, "fsdp_config.fsdp_version: must be 2: version 1 hides the adapter in flat parameters")
    if settings.get("gradient_accumulation_steps", "auto") not in (1, "auto"):
        raise _wrong(path, "deepspeed_config.gradient_accumulation_steps: must be auto; use grad_accum of the stage")
    if settings.get("zero_stage") == 3 and not settings.get("zero3_save_16bit_model"):
        raise _wrong(path, "deepspeed_config.zero3_save_16bit_model: must be true: the adapter is gathered that way")
    if kind == "DEEPSPEED" and find_spec("deepspeed") is None:
        raise _wrong(path, "distributed_type: DEEPSPEED needs the package deepspeed: pip install deepspeed")


def _text(value: Any) -> str:
    """As accelerate writes it into a variable."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrong(path: Path, what: str) -> ConfigError:
    return ConfigError(f"{KEY}: {path}: {what}")
