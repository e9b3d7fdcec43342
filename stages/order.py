"""In which order the training rows are taken: a pure function of the seed, the same for everything that asks."""

from collections.abc import Sequence
from random import Random


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
