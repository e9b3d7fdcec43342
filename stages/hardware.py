"""Where a stage computes: `auto` resolved without torch (for `plan`), and the process prepared before anything random.

Determinism is promised on a CPU, per machine type and thread count; elsewhere it is asked for as far as it goes.
"""

import contextlib
import ctypes
import importlib.util
import os
import random
import warnings
from collections.abc import Iterator
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
    return Hardware(device=device.name, dtype=dtype.name, threads=config.threads or _cores())


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


def memory() -> int:
    """Of the host, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def device_memory(hardware: Hardware) -> int | None:
    """Of the device that computes, in bytes: of the smallest GPU there is, or of the host; None where it is unknown."""
    if hardware.device != "cuda":
        return memory()  # Apple's GPUs share the host's
    with _nvml() as nvml:
        sizes = [_memory(nvml, index) for index in range(_count(nvml))] if nvml else []
    return min(sizes, default=None)


def _cores() -> int:
    """CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cuda_capability() -> int | None:
    """Smallest major compute capability of the GPUs there are; None when torch could use none of them."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or not _torch_has_cuda():
        return None
    with _nvml() as nvml:
        found = [_capability(nvml, index) for index in range(_count(nvml))] if nvml else []
    return min(found, default=None)


@contextlib.contextmanager
def _nvml() -> Iterator[ctypes.CDLL | None]:
    """NVML, or None. Unlike the CUDA driver it leaves no state behind that a forked process would trip over."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        nvml = None
    if nvml is None or nvml.nvmlInit_v2() != 0:
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _count(nvml: ctypes.CDLL) -> int:
    count = ctypes.c_uint()
    return count.value if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 else 0


def _capability(nvml: ctypes.CDLL, index: int) -> int:
    device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
    nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
    return major.value


class _MemoryInfo(ctypes.Structure):
    """What `nvmlDeviceGetMemoryInfo` fills in, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _memory(nvml: ctypes.CDLL, index: int) -> int:
    device, found = ctypes.c_void_p(), _MemoryInfo()
    nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
    nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(found))
    return int(found.total)


def _torch_has_cuda() -> bool:
    """Whether the installed torch is a CUDA build, told by its libraries: importing it would take seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    return any((Path(spec.origin).parent / "lib").glob("*torch_cuda*"))
