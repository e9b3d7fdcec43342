"""Where a stage computes: `auto` resolved without torch (for `plan`), and the process prepared before anything random.

Determinism is promised on a CPU, per machine type and thread count; elsewhere it is asked for as far as it goes.
"""

import importlib.util
import os
import random
import warnings
from dataclasses import replace
from pathlib import Path

from conf.errors import UserError
from conf.hardware import Device, Dtype, HardwareConfig
from stages import gpus
from stages.accelerate_config import read_accelerate_config
from stages.contract import Hardware


def resolve_hardware(config: HardwareConfig, folder: Path = Path()) -> Hardware:
    """Turn `auto` into facts, without importing torch; relative paths are relative to the folder.

    `device: auto` is CUDA when a driver, a GPU and a CUDA build of torch are there, else the CPU; Apple's `mps` is only
    taken when asked for, because its kernels are neither complete nor deterministic. `dtype: auto` is bfloat16 on GPUs
    that compute in it (compute capability 8 and later), else float32.

    Raises:
        UserError: The config file of accelerate cannot be used.
    """
    capability = gpus.capability()
    device = config.device
    if device is Device.auto:
        device = Device.cuda if capability else Device.cpu
    dtype = config.dtype
    if dtype is Dtype.auto:
        dtype = Dtype.bfloat16 if device is Device.cuda and capability and capability >= 8 else Dtype.float32
    hardware = Hardware(
        device=device.name,
        dtype=dtype.name,
        threads=config.threads or config.ray.num_cpus or len(cores()),
        num_processes=config.num_processes,
        load_in_4bit=config.load_in_4bit,
    )
    if config.accelerate_config is None:
        return hardware
    return replace(hardware, accelerate=read_accelerate_config(folder / config.accelerate_config, hardware))


def check_4bit(hardware: Hardware) -> None:
    """See that what 4-bit training needs is installed; loads nothing.

    Raises:
        UserError: It is not.
    """
    if hardware.load_in_4bit and importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(
            'hardware.load_in_4bit: needs bitsandbytes, which is not installed: pip install "ratchet[4bit]"; '
            "or leave it out"
        )


def prepare(hardware: Hardware, seed: int) -> None:
    """Make the process ready for one stage: device checked, threads set, every generator seeded.

    Call it before any model, adapter or data order exists. Processes that train together divide the threads.

    Raises:
        UserError: The device is not there.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # Deterministic cuBLAS; read at its first use.
    import numpy
    import torch

    check_device(hardware)
    if hardware.num_processes > 1 and not torch.distributed.is_initialized():
        raise RuntimeError("a stage for several processes is run by flows.ranks.run_ranks")
    torch.set_num_threads(threads_of_one(hardware))
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Otherwise every uninitialised tensor is filled with NaN, which costs time and changes no result.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # Outside the CPU some kernels have no deterministic form; the promise does not cover them, so nothing to report.
    warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation.*")


def threads_of_one(hardware: Hardware) -> int:
    """CPU threads of each of the processes that train together."""
    return max(1, hardware.threads // hardware.num_processes)


def check_device(hardware: Hardware) -> None:
    """See that the device is there, once for every process; loads torch for any but the CPU.

    Raises:
        UserError: It is not.
    """
    if hardware.device == "cpu":
        return
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # CUDA itself would settle now which GPUs we see
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there[hardware.device]:
        raise UserError(
            f"hardware.device: {hardware.device} cannot be used: torch {torch.__version__} finds no such device; "
            "set hardware.device=cpu"
        )
    count = len(gpus.visible()) or torch.cuda.device_count()
    if hardware.device == "cuda" and count < hardware.num_processes:
        raise UserError(
            f"hardware.num_processes: {hardware.num_processes} processes need a GPU each, and there are {count}; "
            f"set hardware.num_processes={count}"
        )


def memory() -> int:
    """Of the host, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def device_memory(hardware: Hardware) -> int | None:
    """Of the device that computes, in bytes: of the smallest GPU there is, or of the host; None where it is unknown."""
    if hardware.device != "cuda":
        return memory()  # Apple's GPUs share the host's
    return gpus.smallest_memory()


def cores() -> list[int]:
    """The numbers of the CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
