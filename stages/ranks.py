"""What processes that train together tell each other; one process alone is rank 0 of 1, and this costs it nothing.

Every rank runs the same stage and does its share of every optimiser step (see `conf.processes`). Rank 0 alone writes
and reports. What is asked here is asked by all ranks at the same point: a rank that asks waits for the others.
"""

import os
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import numpy
import torch
from torch import distributed

from stages.contract import Hardware

T = TypeVar("T")

_PATIENCE = timedelta(days=7)
"""How long ranks wait for each other, e.g. for one that measures; when one dies, torchrun ends the others."""


def join(hardware: Hardware) -> None:
    """Meet the other ranks, in a process that torchrun started."""
    if hardware.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if hardware.device == "cuda" else "gloo"
    distributed.init_process_group(backend, timeout=_PATIENCE)


def leave() -> None:
    """Go on without the others."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def count() -> int:
    """How many ranks there are."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def number() -> int:
    """Which one this is, from 0."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def is_first() -> bool:
    """Whether this is rank 0, which writes."""
    return number() == 0


def barrier() -> None:
    """Wait until every rank has come here."""
    gathered(None)


def gathered(mine: T) -> list[T]:
    """What every rank has, in their order."""
    if count() == 1:
        return [mine]
    values: list[Any] = [None] * count()
    distributed.all_gather_object(values, mine)
    return values


def of_first(make: Callable[[], T]) -> T:
    """What rank 0 makes; the others wait for it."""
    if count() == 1:
        return make()
    values: list[Any] = [make() if is_first() else None]
    distributed.broadcast_object_list(values)
    made: T = values[0]
    return made


def any_of(mine: bool) -> bool:
    """Whether any rank says yes."""
    if count() == 1:
        return mine
    flag = torch.tensor(int(mine))
    distributed.all_reduce(flag, distributed.ReduceOp.MAX)
    return bool(flag.item())


def seed_of(rank: int, seed: int) -> int:
    """The seed of what a rank draws; rank 0 draws as one process alone would."""
    return random.Random(f"{seed} rank {rank}").randrange(2**32) if rank else seed


def seed_apart(seed: int) -> None:
    """From here on every rank draws its own samples and dropout; before, all draw the same, e.g. the new adapter."""
    if count() > 1:
        mine = seed_of(number(), seed)
        random.seed(mine)
        numpy.random.seed(mine)
        torch.manual_seed(mine)
