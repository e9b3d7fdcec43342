"""A rank for which accelerate has FSDP on a CPU as well, where it knows only DDP: to try it without GPUs."""

import os
import sys
from pathlib import Path
from typing import Any

from stages.rank_main import main


def allow_fsdp_on_cpu() -> None:
    """Let accelerate take the processes for those of GPUs; the device stays the CPU."""
    from accelerate.state import DistributedType, PartialState

    def prepare(self: PartialState, *_: Any, **__: Any) -> tuple[str, DistributedType]:
        return "gloo", DistributedType.MULTI_GPU

    PartialState._prepare_backend = prepare
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"


if __name__ == "__main__":
    allow_fsdp_on_cpu()
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
