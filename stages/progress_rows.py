"""One row of numbers per optimiser step, checked to be finite: what TRL logs, under Ratchet's names."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from stages import ranks
from stages.contract import StageContext
from stages.held_out import HeldOut
from stages.progress import COMMON
from stages.sharding import own_part


class DivergedError(RuntimeError):
    """Training produced a number that is not finite; the message names the step, its rows and what is left."""


class ProgressRows(TrainerCallback):  # type: ignore[misc]
    """Passes on one row per optimiser step.

    Args:
        ctx: Takes the rows and the progress.
        columns: TRL's names of further columns, and ours.
        epochs_per_step: Share of the training rows that one optimiser step uses.
        batch: The numbers of the training rows that a step uses, for messages.
        held_out: Its numbers join the row of the step after which they were taken.
    """

    def __init__(
        self,
        ctx: StageContext,
        columns: Mapping[str, str],
        epochs_per_step: float,
        batch: Callable[[int], Sequence[int]],
        held_out: HeldOut,
    ) -> None:
        self.ctx, self.batch, self.held_out = ctx, batch, held_out
        self.columns = {**COMMON, **columns}
        self.epochs_per_step = epochs_per_step
        self.last: Mapping[str, float] = {}
        self.checkpoint: Path | None = None  # the last good one, for messages

    def restore(self, row: Mapping[str, float], checkpoint: Path) -> None:
        """Go on after the row of a checkpoint."""
        self.last, self.checkpoint = row, checkpoint

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start the clock, or go on from where an earlier attempt's stood."""
        self.started = time.monotonic() - self.last.get("time", 0.0)
        self.ctx.progress("train", state.global_step, state.max_steps)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        model: torch.nn.Module | None = None,
        **_: Any,
    ) -> None:
        """Pass on one optimiser step.

        Raises:
            DivergedError: A number, or a weight of the adapter, is not finite.
        """
        if logs is None or "loss" not in logs:  # of an evaluation, or the trainer's summary at the end
            return
        row = {ours: float(logs[name]) for name, ours in self.columns.items() if name in logs}
        row |= self.held_out.take()
        self._check(state.global_step, row, model)
        self.last = {
            "step": state.global_step,
            "epoch": round(state.global_step * self.epochs_per_step, 6),
            "time": round(time.monotonic() - self.started, 3),
            **row,
        }
        self.ctx.log_metrics(self.last)
        self.ctx.progress("train", state.global_step, state.max_steps)

    def _check(self, step: int, row: Mapping[str, float], model: torch.nn.Module | None) -> None:
        wrong = [f"{name} is {value}" for name, value in row.items() if not math.isfinite(value)]
        if not wrong and model is not None and ranks.any_of(not finite(model)):
            wrong = ["a weight of the adapter is not finite"]
        if wrong:
            rows = ", ".join(map(str, self.batch(step)))
            raise DivergedError(
                f"step {step}: {wrong[0]} (training rows {rows}); {self.left()}; try a lower learning_rate"
            )

    def left(self) -> str:
        """What there is to go on from, for messages."""
        return f"the last good checkpoint is {self.checkpoint}" if self.checkpoint else "there is no checkpoint yet"


@torch.no_grad()
def finite(model: torch.nn.Module) -> bool:
    """Whether every trained weight that this process has is finite; one look at the device for all of them."""
    parts = [own_part(parameter) for parameter in model.parameters() if parameter.requires_grad]
    norms = torch._foreach_norm([part for part in parts if part.numel()], math.inf)
    return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())
