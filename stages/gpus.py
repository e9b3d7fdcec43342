"""The host's GPUs, as NVML tells of them: unlike CUDA it leaves no state that a forked process would trip over."""

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pynvml


def capability() -> int | None:
    """Smallest major compute capability of the GPUs there are; None when torch could use none of them."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or not _torch_has_cuda():
        return None
    with _handles() as handles:
        return min((pynvml.nvmlDeviceGetCudaComputeCapability(each)[0] for each in handles), default=None)


def smallest_memory() -> int | None:
    """Of the GPU that has the least, in bytes; None when there is none."""
    with _handles() as handles:
        return min((int(pynvml.nvmlDeviceGetMemoryInfo(each).total) for each in handles), default=None)


@cache
def visible() -> dict[str, str]:
    """The GPUs that CUDA shows this process: as CUDA_VISIBLE_DEVICES names them, with what names each on this host.

    They are those of the first call: a lease (`flows.leases`) changes the variable. Numbers are taken to be in NVML's
    order, which is CUDA's own where all GPUs are alike.
    """
    with _handles() as handles:
        found = [str(pynvml.nvmlDeviceGetUUID(each)) for each in handles]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    entries = [str(index) for index in range(len(found))] if chosen is None else chosen.split(",")
    return {entry: name for entry in map(str.strip, entries) if found and (name := _named(entry, found))}


def _named(entry: str, gpus: list[str]) -> str:
    """What an entry of CUDA_VISIBLE_DEVICES stands for: a number, the beginning of a GPU's name, or a part of a GPU."""
    if entry.isdigit():
        return gpus[int(entry)] if int(entry) < len(gpus) else ""
    return next((gpu for gpu in gpus if entry and gpu.startswith(entry)), entry.replace("/", "-"))


@contextlib.contextmanager
def _handles() -> Iterator[list[Any]]:
    """NVML's handles of all GPUs; none where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield []
        return
    try:
        yield [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def _torch_has_cuda() -> bool:
    """Whether the installed torch is a CUDA build, told by its libraries: importing it would take seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    return any((Path(spec.origin).parent / "lib").glob("*torch_cuda*"))
