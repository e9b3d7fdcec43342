"""How the work of one optimiser step is divided over several processes: the step itself stays what the user wrote."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conf.errors import ConfigError
from conf.steps import Step
from conf.training import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one of several processes does of every optimiser step.

    Attributes:
        batch_size: Rows (or prompts) of its micro-batches.
        grad_accum: Its micro-batches.
        together: How many processes, one after the other, have a configured micro-batch between them.
    """

    batch_size: int
    grad_accum: int
    together: int = 1


def share(config: TrainingConfig, processes: int) -> Share:
    """Divide a step's micro-batches, and only where there are too few of them, the micro-batches themselves.

    So no process needs more memory than one alone would, and losses that are a mean per micro-batch stay what they are.

    Args:
        config: The stage's section.
        processes: A divisor of `batch_size x grad_accum`.
    """
    apart = math.gcd(processes, config.grad_accum)
    together = processes // apart
    return Share(batch_size=config.batch_size // together, grad_accum=config.grad_accum // apart, together=together)


def check_processes(steps: Mapping[str, Step], settings: Mapping[str, Any], processes: int) -> None:
    """See that every training step can be divided.

    Raises:
        ConfigError: One cannot; names the keys and what would be right.
    """
    for name, step in steps.items():
        config = settings[name]
        if isinstance(config, TrainingConfig) and config.batch_size * config.grad_accum % processes:
            raise ConfigError(_cannot(name, step.stage, config, processes))


def _cannot(name: str, stage: str, config: TrainingConfig, processes: int) -> str:
    per_step = config.batch_size * config.grad_accum
    what = "prompts" if stage == "reinforce" else "rows"
    counts = [count for count in range(1, processes) if per_step % count == 0]
    multiple = processes // math.gcd(processes, config.grad_accum)
    larger = math.ceil(config.batch_size / multiple) * multiple
    return (
        f"hardware.num_processes: {processes} processes cannot divide the {per_step} {what} that an optimiser step of "
        f"{name!r} takes ({stage}.batch_size {config.batch_size} x {stage}.grad_accum {config.grad_accum}); "
        f"set hardware.num_processes={max(counts)}, or e.g. {stage}.batch_size={larger}"
    )
