"""How training does on rows it does not see: a number every `eval_steps`, and with `keep: best` the best adapter.

The rows are those of the `select` split; the `gate` split is for the end. Looking changes nothing: the random state is
put back, so that a run with `eval_steps` trains what the same run without them does.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import peft
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from conf.errors import UserError
from conf.training import Keep, TrainingConfig
from stages import ranks
from stages.contract import StageContext
from stages.models import unchanged_random_state
from stages.rows import Row, read_rows

BEST_FILE = "best.safetensors"

Measure = Callable[[], Mapping[str, float]]
"""Numbers of the model as it is; the first decides what is best."""


class HeldOut(TrainerCallback):  # type: ignore[misc]
    """Measures now and then, and remembers the best.

    Args:
        config: The stage's section.
        model: The model in training.
        measure: Takes the numbers; their names begin with `eval_`.
        lower_is_better: Whether the first of them is a loss.

    Attributes:
        best: `step` and `value` of the best first number so far, with `keep: best`.
    """

    def __init__(
        self, config: TrainingConfig, model: peft.PeftModel, measure: Measure, *, lower_is_better: bool
    ) -> None:
        self.every, self.keeps_best = config.eval_steps, config.keep is Keep.best
        self.model, self.measure, self.sign = model, measure, -1 if lower_is_better else 1
        self.best: Mapping[str, float] | None = None
        self._weights: dict[str, torch.Tensor] = {}
        self._latest: Mapping[str, float] = {}

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Measure, if it is time to; also after the last step."""
        if self.every and (state.global_step % self.every == 0 or state.global_step >= state.max_steps):
            with unchanged_random_state(self.model.device):
                measured = self.measure()
            self._latest = ranks.of_first(lambda: measured)  # so that all decide the same
            value = next(iter(self._latest.values()))
            if self.keeps_best and (self.best is None or self.sign * value > self.sign * self.best["value"]):
                self.best = {"step": state.global_step, "value": value}
                weights = peft.get_peft_model_state_dict(self.model)
                self._weights = {name: tensor.detach().cpu().clone() for name, tensor in weights.items()}

    def take(self) -> Mapping[str, float]:
        """The numbers taken since this was last asked."""
        latest, self._latest = self._latest, {}
        return latest

    def save(self, folder: Path) -> None:
        """Leave the best adapter in a checkpoint."""
        if self.best is not None:
            save_file(self._weights, folder / BEST_FILE)

    def restore(self, folder: Path, best: Mapping[str, float] | None) -> None:
        """Go on from a checkpoint."""
        self.best = best
        if best is not None:
            self._weights = load_file(folder / BEST_FILE)

    def put_back(self) -> None:
        """Give the model the best adapter, if it is asked for, and let go of it: a folded one takes its place."""
        if self.best is not None:
            peft.set_peft_model_state_dict(self.model, self._weights)
        del self.model


def held_out_rows(config: TrainingConfig, ctx: StageContext) -> list[Row]:
    """The rows to look at.

    Raises:
        UserError: There are none.
    """
    rows = read_rows(ctx.data["select"], config.eval_rows) if "select" in ctx.data else []
    if not rows:
        raise UserError("eval_steps: there are no held-out rows to look at; give more data, or leave eval_steps out")
    return rows


def held_out_loss(trainer: Trainer, rows: Dataset) -> dict[str, float]:
    """The trainer's own loss on rows that are tokenised as it takes them.

    `Trainer.evaluate` would do the same and log it, after which the trainer no longer logs the step it is at. Every
    process looks at all rows: divided, they would be other batches, and their mean another number.
    """
    batches = DataLoader(rows, batch_size=trainer.args.per_device_eval_batch_size, collate_fn=trainer.data_collator)
    output = trainer.evaluation_loop(batches, "held-out rows", prediction_loss_only=True)
    return {"eval_loss": float(output.metrics["eval_loss"])}
