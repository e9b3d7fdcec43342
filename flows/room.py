"""Is there room for a run? What its steps may write, estimated from above before any model is loaded.

A disk that fills after hours loses no work, but it costs the night. So a run does not begin where its adapters and
checkpoints cannot fit. A base model that is not on this machine yet counts only where Ratchet itself makes it.
"""

import math
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from conf.errors import UserError
from conf.measuring import GateConfig, ProbeConfig
from conf.steps import STAGES, Step
from conf.training import Keep, LoraConfig, PairsConfig, ReinforceConfig, TrainingConfig
from flows.workspace import Workspace
from stages.cache import cache_dir
from stages.disk import GIVE_ROOM, check_writable, free_space, size_text
from stages.identity import MADE, present_directory

_KIB = 2**10
_DATABASE = 1280 * _KIB
"""A new tracking database."""
_PER_STEP = 96 * _KIB
"""Of any step: its configuration, receipt, log and record, and what the tracking database says of it."""
_PER_UPDATE = 8 * _KIB
"""Of one optimiser step: its row of progress, here and in the tracking database."""
_PER_TOKEN = 8
"""Of one token of a reply that is kept."""
_CHECKPOINT = 3
"""Adapters in a checkpoint: the weights, and two moments of the optimiser for each; the best one besides."""
_REGISTERED = 2
"""Copies of a model that ships: what is exported, and what the registry keeps."""
_TEMPORARY = 1
"""Copies of its replies that a step needs until it is done."""
_KEPT = 1
"""Copies of an evaluation's replies that are kept for others that need the same scores."""


@dataclass(frozen=True)
class Need:
    """Bytes that a run, or one of its steps, may write below the runs directory."""

    adapters: int = 0
    checkpoints: int = 0
    replies: int = 0
    records: int = 0
    registered: int = 0

    @property
    def total(self) -> int:
        """All of it, at the moment when it is most."""
        return self.adapters + self.checkpoints + self.replies + self.records + self.registered

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size_text(size)}" for name, size in vars(self).items() if size)
        return f"{size_text(self.total)} ({parts})"


def check_room(workspace: Workspace, steps: Iterable[str]) -> None:
    """See that what these steps may write fits.

    Raises:
        UserError: It does not; says how much is free, and how much may be needed for what.
    """
    made = MADE.get(workspace.models.base.config.id)
    if made and present_directory(workspace.models.base) is None:
        check_writable(cache_dir(), "RATCHET_CACHE_DIR")
        if (free := free_space(cache_dir())) < made.SIZE:
            raise UserError(
                f"RATCHET_CACHE_DIR: {cache_dir()} has {size_text(free)} free, the base model, which is made there "
                f"once, takes {size_text(made.SIZE)}; make room, or name another directory"
            )
    need = estimate(workspace, steps)
    if (free := free_space(workspace.runs_dir)) < need.total:
        raise UserError(
            f"runs_dir: {workspace.runs_dir} has {size_text(free)} free, this pipeline may need about {need}; "
            f"{GIVE_ROOM}"
        )


def estimate(workspace: Workspace, steps: Iterable[str]) -> Need:
    """What these steps may write, from above. Checkpoints are there only while a step trains."""
    needs = [_step_need(workspace, name) for name in steps]
    database = workspace.runs_dir / "mlflow.db"
    return Need(
        adapters=sum(need.adapters for need in needs),
        checkpoints=max((need.checkpoints for need in needs), default=0),
        replies=sum(need.replies for need in needs),
        records=sum(need.records for need in needs)
        + _PER_STEP * (len(workspace.config.steps) + 1)
        + (_DATABASE if _embedded_tracking(workspace) and not database.exists() else 0),
        registered=sum(need.registered for need in needs),
    )


def matrices(directory: Path | None) -> dict[str, tuple[int, int]]:
    """The matrices of a model on disk that an adapter may be put on, by module name; none where it is not there."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(directory.glob("*.safetensors")) if directory else []:
        with suppress(SafetensorError), safe_open(path, framework="np") as file:  # who loads it reports the damage
            for name in file.keys():  # noqa: SIM118  (it is no mapping)
                shape = file.get_slice(name).get_shape()
                if len(shape) == 2 and not name.endswith(("embed_tokens.weight", "lm_head.weight")):
                    found[name.removesuffix(".weight")] = (shape[0], shape[1])
    return found


def adapter_size(lora: LoraConfig, shapes: dict[str, tuple[int, int]]) -> int:
    """Bytes of an adapter on disk: two factors in float32 for every matrix it is put on."""
    everywhere = lora.target_modules == ["all-linear"]
    chosen = [
        sum(shape)
        for name, shape in shapes.items()
        if everywhere or any(f".{name}".endswith(f".{module}") for module in lora.target_modules)
    ]
    return 4 * lora.r * sum(chosen) + 256 * len(chosen) + 8 * _KIB  # the weights, their names, two small files


def _step_need(workspace: Workspace, name: str) -> Need:
    settings = workspace.config.settings[name]
    copies = 2 if _embedded_tracking(workspace) else 1
    replies = (copies + _TEMPORARY) * _replies(workspace, name)
    directory = present_directory(workspace.models.base)
    if not isinstance(settings, TrainingConfig):
        ships = isinstance(settings, GateConfig) and settings.register
        return Need(replies=replies, registered=_REGISTERED * _model_size(directory) if ships else 0)
    adapter = adapter_size(settings.lora, matrices(directory))
    checkpoint = adapter * (_CHECKPOINT + (settings.keep is Keep.best)) + _beside_weights(directory) + _PER_STEP
    rows = _rows(workspace, workspace.config.steps[name])[0]
    updates = settings.max_steps or math.ceil(rows * settings.epochs / (settings.batch_size * settings.grad_accum))
    return Need(
        adapters=copies * adapter,
        checkpoints=(settings.keep_checkpoints + 1) * checkpoint,  # the next one is written before the oldest goes
        replies=replies,
        records=updates * _PER_UPDATE,
    )


def _model_size(directory: Path | None) -> int:
    """Bytes of a model's files; a folded model has as many."""
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file()) if directory else 0


def _beside_weights(directory: Path | None) -> int:
    """Bytes of a model's tokenizer and configuration, which every checkpoint has, too."""
    files = directory.iterdir() if directory else []
    return sum(path.stat().st_size for path in files if path.is_file() and path.suffix != ".safetensors")


def _replies(workspace: Workspace, name: str) -> int:
    """Bytes of the replies that a step keeps, each with its row."""
    step: Step = workspace.config.steps[name]
    if "suites" in STAGES[step.stage].needs:
        return (1 + _KEPT) * sum(_suite_replies(workspace, suite) for suite in workspace.config.suite_names(step))
    rows, row = _rows(workspace, step)
    match workspace.config.settings[name]:
        case PairsConfig() as pairs:
            prompts = min(rows, pairs.max_prompts or rows)
            return rows * row + 2 * prompts * (row + _PER_TOKEN * pairs.max_new_tokens)
        case ProbeConfig() as probe:
            longest = probe.max_new_tokens or ReinforceConfig.max_new_tokens
            return probe.prompts * probe.samples * (row + _PER_TOKEN * longest)
        case TrainingConfig() as training:
            band = training.difficulty if isinstance(training, ReinforceConfig) else None
            measured = rows * row if band and band.leaves_out else 0
            return measured + training.n_samples * (row + _PER_TOKEN * training.sample_max_new_tokens)
    return 0


def _suite_replies(workspace: Workspace, name: str) -> int:
    suite = workspace.config.suites[name]
    rows, row_size = _lines(workspace.suites.rows(name, suite))
    steps = workspace.config.steps.values()
    models = 2 + sum(STAGES[step.stage].trains for step in steps) + sum(len(step.models) for step in steps)
    replies = models * min(rows, suite.max_rows or rows) * suite.samples
    return replies * (row_size + _PER_TOKEN * suite.max_new_tokens)


def _rows(workspace: Workspace, step: Step) -> tuple[int, int]:
    """How many training rows a step has at most, and bytes of one; what another step makes counts as what it reads."""
    while step.data_step:
        step = workspace.config.steps[step.data_step]
    return _lines(workspace.suites.prepared(str(step.data))["train"])


def _lines(path: Path) -> tuple[int, int]:
    """Number of lines, and bytes of one on average."""
    with path.open("rb") as file:
        lines = sum(1 for _ in file)
    return lines, math.ceil(path.stat().st_size / max(lines, 1))


def _embedded_tracking(workspace: Workspace) -> bool:
    return not (workspace.config.sections.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI"))
