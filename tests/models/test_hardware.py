"""`auto` becomes facts, a device that is not there is an error, and equal seeds give equal numbers."""

import os
import random

import numpy
import pytest
import torch

from conf.errors import UserError
from conf.hardware import Device, Dtype, HardwareConfig
from stages.contract import Hardware
from stages.hardware import prepare, resolve_hardware, threads_of_one


def test_auto_agrees_with_torch() -> None:
    hardware = resolve_hardware(HardwareConfig())
    assert (hardware.device == "cuda") == torch.cuda.is_available()
    assert hardware.device == "cuda" or hardware.dtype == "float32"
    assert hardware.threads == len(os.sched_getaffinity(0))


def test_what_is_set_stays() -> None:
    config = HardwareConfig(device=Device.cpu, dtype=Dtype.bfloat16, threads=3, num_processes=2)
    assert resolve_hardware(config) == Hardware(device="cpu", dtype="bfloat16", threads=3, num_processes=2)
    assert resolve_hardware(config).alone == Hardware(device="cpu", dtype="bfloat16", threads=3)


@pytest.mark.parametrize(("threads", "processes", "each"), [(8, 2, 4), (7, 2, 3), (2, 4, 1), (3, 1, 3)])
def test_processes_divide_the_threads(threads: int, processes: int, each: int) -> None:
    assert threads_of_one(Hardware(threads=threads, num_processes=processes)) == each


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has it")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match=r"hardware\.device: mps .* set hardware\.device=cpu"):
        prepare(Hardware(device="mps"), seed=0)


def test_equal_seeds_give_equal_numbers() -> None:
    def draw(seed: int) -> tuple[float, float, float]:
        prepare(Hardware(threads=1), seed)
        return random.random(), float(numpy.random.rand()), float(torch.rand(()))

    assert draw(7) == draw(7)
    assert all(one != other for one, other in zip(draw(7), draw(8), strict=True))
    assert torch.get_num_threads() == 1
    assert torch.are_deterministic_algorithms_enabled()
