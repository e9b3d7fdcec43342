"""Where a training stage stands, on disk: what its next attempt goes on from, to the bit.

TRL's trainer writes everything that training depends on (adapter, optimiser, schedule, position in the data, all random
states). It writes into a draft; here the draft gets a list of its files with their hashes and its final name, in one
rename. So a checkpoint is whole or is not there, and one that was damaged later is noticed.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from stages import ranks
from stages.cache import file_sha256, write_atomically
from stages.contract import StageContext
from stages.held_out import HeldOut
from stages.progress_rows import ProgressRows

FOLDER, DRAFT, MANIFEST = "checkpoints", "draft", "checkpoint.json"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One checkpoint on disk.

    Attributes:
        path: Its directory, which `Trainer.train(resume_from_checkpoint=...)` takes.
        step: Optimiser steps done.
        row: The progress row of that step.
        best: Step and value of the best held-out metric so far, whose adapter lies beside; None without one.
    """

    path: Path
    step: int
    row: Mapping[str, float]
    best: Mapping[str, float] | None


class Checkpoints:
    """All checkpoints of one stage.

    Args:
        out_dir: The stage's directory.
        keep: How many to keep; older ones are removed.
    """

    def __init__(self, out_dir: Path, keep: int) -> None:
        self.root, self.kept = out_dir / FOLDER, keep

    def newest(self, say: Callable[[str], None]) -> Checkpoint | None:
        """The newest one that is whole; those that are not are told of and removed, as are drafts."""
        self.discard_draft()
        for path in reversed(self._all()):
            checkpoint = read_checkpoint(path)
            if checkpoint is not None:
                return checkpoint
            say(f"{path} is damaged and is not used")
            shutil.rmtree(path, ignore_errors=True)
        return None

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is."""
        return self.root / f"step-{step:08d}"

    def keep(self, draft: Path, step: int, row: Mapping[str, float], best: Mapping[str, float] | None) -> None:
        """Turn a finished draft into a checkpoint."""
        files = {str(path.relative_to(draft)): file_sha256(path) for path in _files(draft)}
        manifest = {"step": step, "row": dict(row), "best": best, "files": files}
        write_atomically(draft / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        path = self.path(step)
        shutil.rmtree(path, ignore_errors=True)  # of an attempt that wrote it and then went on from an earlier one
        draft.rename(path)
        for old in self._all()[: -self.kept]:
            shutil.rmtree(old)

    def discard_draft(self) -> None:
        """Remove what was not written to its end: on a full disk its room is needed."""
        shutil.rmtree(self.root / DRAFT, ignore_errors=True)

    def _all(self) -> list[Path]:
        """The oldest first."""
        return sorted(self.root.glob("step-*"))


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint in a directory, or None when anything of it is missing or changed."""
    try:
        saved = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if any(file_sha256(path / name) != sha256 for name, sha256 in saved["files"].items()):
            return None
        return Checkpoint(path=path, step=saved["step"], row=saved["row"], best=saved["best"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # whatever damage leads to
        return None


class SaveCheckpoints(TrainerCallback):  # type: ignore[misc]
    """Keeps the drafts that the trainer writes, and asks for one more when the stage is asked to end early."""

    def __init__(self, ctx: StageContext, checkpoints: Checkpoints, rows: ProgressRows, held_out: HeldOut) -> None:
        self.ctx, self.checkpoints, self.rows, self.held_out = ctx, checkpoints, rows, held_out

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """End after this step if somebody asks for it."""
        if self.ctx.stopping() and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The trainer has written a draft, and in every process its random state into it."""
        draft = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        ranks.barrier()
        if ranks.is_first():
            self.held_out.save(draft)
            self.checkpoints.keep(draft, state.global_step, self.rows.last, self.held_out.best)
        self.rows.checkpoint = self.checkpoints.path(state.global_step)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
