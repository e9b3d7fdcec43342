"""The section `hardware`: where and in which precision a run computes, and in how many processes.

What holds of all sections (defaults, `outcome=False`, plain dataclasses) stands in `conf.schema`.
"""

import enum
from dataclasses import dataclass, field

from conf.errors import ConfigError
from conf.options import option


class Device(enum.Enum):
    """Where models run."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class Dtype(enum.Enum):
    """The number type of the weights."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@dataclass
class RayResources:
    """What a cell of a sweep takes of a Ray cluster (`orchestration.runner=ray`)."""

    num_cpus: int | None = option(None, ge=1)
    """CPUs; when absent 1 beside a GPU, else as many as `threads`."""
    num_gpus: int | None = option(None, ge=0, outcome=False)
    """GPUs; when absent 1 where `device` is `cuda`, else none."""


@dataclass
class HardwareConfig:
    """Where and in which precision a run computes."""

    device: Device = Device.auto
    """`auto` takes a GPU when there is one."""
    dtype: Dtype = Dtype.auto
    """`auto` is bfloat16 on a GPU and float32 elsewhere."""
    threads: int | None = option(None, ge=1)
    """CPU threads, of all processes together; when absent `ray.num_cpus`, else all cores. Results are reproducible per
    thread count."""
    num_processes: int = option(1, ge=1)
    """Processes that train together (`sft`, `preference`, `reinforce`), each on a GPU of its own where there are GPUs.
    They divide `batch_size x grad_accum`, which stays what an optimiser step takes in all."""
    accelerate_config: str | None = None
    """A config file of accelerate, whose FSDP or DeepSpeed settings the processes use."""
    load_in_4bit: bool = False
    """Whether stages that train hold the model they start from in 4 bits (extra `ratchet[4bit]`). What they leave is
    full precision all the same, and so is all that other stages see."""
    ray: RayResources = field(default_factory=RayResources)
    """What a cell of a sweep takes of a Ray cluster."""

    def __post_init__(self) -> None:
        """See that several processes are possible on the device."""
        if self.num_processes > 1 and self.device is Device.mps:
            raise ConfigError("num_processes: several processes cannot share an mps device; set hardware.device=cpu")
