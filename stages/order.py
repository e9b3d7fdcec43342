"""In which order the training rows are taken: a pure function of the seed, the same for everything that asks."""

from collections.abc import Sequence
from random import Random

from conf.errors import UserError
from conf.training import TrainingConfig


def require_step(config: TrainingConfig, rows: int, what: str = "rows") -> int:
    """How many rows one optimiser step takes.

    Raises:
        UserError: There are fewer.
    """
    per_step = config.batch_size * config.grad_accum
    if rows < per_step:
        raise UserError(
            f"{rows} training {what} are fewer than one optimiser step takes: batch_size {config.batch_size} x "
            f"grad_accum {config.grad_accum} = {per_step}; give more {what} or a smaller batch_size or grad_accum"
        )
    return per_step


def wrapped_order(rows: int, needed: int, seed: int) -> list[int]:
    """Indices of the `needed` rows to train on: pass after pass, each freshly shuffled, the last one cut off."""
    random = Random(seed)
    order: list[int] = []
    while len(order) < needed:
        order += random.sample(range(rows), rows)
    return order[:needed]


def fresh_rows(pool: Sequence[int], batch: Sequence[int], seed: int, step: int, attempt: int) -> list[int]:
    """Indices of rows that may replace rows of a step's batch, as many as the batch has where the pool allows.

    All attempts of a step together take rows from one shuffle of the pool without the batch, so that none comes twice.

    Args:
        pool: All rows there are to train on.
        batch: The rows that the step began with.
        seed: Of the stage.
        step: Optimiser steps done.
        attempt: How often rows of this step were replaced before.
    """
    rest = sorted(set(pool) - set(batch))
    shuffled = Random(f"{seed} {step}").sample(rest, len(rest))
    return shuffled[attempt * len(batch) : (attempt + 1) * len(batch)]
