"""Where a stage computes: `auto` resolved without torch (for `plan`), and the process prepared before anything random.

Determinism is promised on a CPU, per machine type and thread count; elsewhere it is asked for as far as it goes.
"""

import ctypes
import importlib.util
import os
import random
import warnings
from pathlib import Path

from conf.errors import UserError
from conf.schema import Device, Dtype, HardwareConfig
from stages.contract import Hardware


def resolve_hardware(config: HardwareConfig) -> Hardware:
    """Turn `auto` into facts, without importing torch.

    `device: auto` is CUDA when a driver, a GPU and a CUDA build of torch are there, else the CPU; Apple's `mps` is only
    taken when asked for, because its kernels are neither complete nor deterministic. `dtype: auto` is bfloat16 on GPUs
    that compute in it (compute capability 8 and later), else float32.
    """
    capability = _cuda_capability()
    device = config.device
    if device is Device.auto:
        device = Device.cuda if capability else Device.cpu
    dtype = config.dtype
    if dtype is Dtype.auto:
        dtype = Dtype.bfloat16 if device is Device.cuda and capability and capability >= 8 else Dtype.float32
    threads = config.threads or config.ray.num_cpus or len(cores())
    return Hardware(device=device.name, dtype=dtype.name, threads=threads)


def prepare(hardware: Hardware, seed: int) -> None:
    """Make the process ready for one stage: device checked, threads set, every generator seeded.

    Call it before any model, adapter or data order exists.

    Raises:
        UserError: The device is not there.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # Deterministic cuBLAS; read at its first use.
    import numpy
    import torch

    check_device(hardware)
    torch.set_num_threads(hardware.threads)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Otherwise every uninitialised tensor is filled with NaN, which costs time and changes no result.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # Outside the CPU some kernels have no deterministic form; the promise does not cover them, so nothing to report.
    warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation.*")


def check_device(hardware: Hardware) -> None:
    """See that the device is there; loads torch for any but the CPU.

    Raises:
        UserError: It is not.
    """
    if hardware.device == "cpu":
        return
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there[hardware.device]:
        raise UserError(
            f"hardware.device: {hardware.device} cannot be used: torch {torch.__version__} finds no such device; "
            "set hardware.device=cpu"
        )


def cores() -> list[int]:
    """The numbers of the CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def visible_gpus() -> dict[str, str]:
    """The GPUs that CUDA shows this process: as CUDA_VISIBLE_DEVICES names them, with what names each on this host.

    Asks NVML, and so does not make the process use any. None where NVML does not answer. Numbers are taken to be in
    NVML's order, which is CUDA's own where all GPUs are alike.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {}
    if nvml.nvmlInit_v2() != 0:
        return {}
    try:
        found = [_uuid(nvml, index) for index in range(_count(nvml))]
    finally:
        nvml.nvmlShutdown()
    entries = [str(index) for index in range(len(found))] if chosen is None else chosen.split(",")
    return {entry: name for entry in map(str.strip, entries) if (name := _named(entry, found))}


def _named(entry: str, gpus: list[str]) -> str:
    """What an entry of CUDA_VISIBLE_DEVICES stands for: a number, the beginning of a GPU's name, or a part of a GPU."""
    if entry.isdigit():
        return gpus[int(entry)] if int(entry) < len(gpus) else ""
    return next((gpu for gpu in gpus if entry and gpu.startswith(entry)), entry.replace("/", "-"))


def _cuda_capability() -> int | None:
    """Smallest major compute capability of the GPUs there are; None when torch could use none of them.

    Asks NVML, which unlike the CUDA driver leaves no state behind that a forked process would trip over.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or not _torch_has_cuda():
        return None
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        return min((_capability(nvml, index) for index in range(_count(nvml))), default=None)
    finally:
        nvml.nvmlShutdown()


def _count(nvml: ctypes.CDLL) -> int:
    count = ctypes.c_uint()
    return count.value if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 else 0


def _uuid(nvml: ctypes.CDLL, index: int) -> str:
    device, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
    nvml.nvmlDeviceGetUUID(device, text, ctypes.c_uint(len(text)))
    return text.value.decode()


def _capability(nvml: ctypes.CDLL, index: int) -> int:
    device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
    nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
    return major.value


def _torch_has_cuda() -> bool:
    """Whether the installed torch is a CUDA build, told by its libraries: importing it would take seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    return any((Path(spec.origin).parent / "lib").glob("*torch_cuda*"))
