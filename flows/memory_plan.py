"""What `ratchet plan` says of memory: the estimate of `stages.cost` for every step that trains, against its device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from conf.errors import UserError
from conf.processes import share
from conf.steps import STAGES, Step
from conf.training import ReinforceConfig, TrainingConfig
from flows.workspace import Workspace
from stages.accelerate_config import is_sharded
from stages.contract import StageResult
from stages.cost import Memory, step_memory
from stages.cost_batches import Count, Lengths, counter, longest_rows, micro_batch
from stages.data import read_rows_of
from stages.disk import size_text
from stages.hardware import device_memory
from stages.identity import present_directory
from stages.rows import Row, read_rows
from stages.shapes import ModelShape, model_shape
from stages.sources import GYM_PREFIX, PREFIX, source_file

_OWN = f"{PREFIX}stages.generators."
"""Ratchet's own generators are quick and print nothing; what others do is not known, and they are for runs to call."""


@dataclass(frozen=True)
class StepMemory:
    """The estimate for one step.

    Attributes:
        step: Its name.
        memory: What it needs, of several processes each.
        device: Bytes its device has; None where that is unknown.
        together: Processes that share the device.
        known: Whether its rows could be looked at, or are taken to be as long as may be.
    """

    step: str
    memory: Memory
    device: int | None
    together: int
    known: bool

    @property
    def peak(self) -> int:
        """What its device needs."""
        return self.memory.peak * self.together

    @property
    def fits(self) -> bool:
        """Whether the device has as much; of an unknown one, nothing is said."""
        return self.device is None or self.peak <= self.device

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        sizes = {"peak": self.peak, "device": self.device, "parts": self.memory.parts()}
        return {**sizes, "fits": self.fits, "rows_known": self.known}


def memory_plan(workspace: Workspace, results: Mapping[str, StageResult]) -> dict[str, StepMemory]:
    """The estimates of the steps that train, by name; none for a model whose shape is not known."""
    shape = model_shape(workspace.models.base)
    if shape is None:
        return {}
    count = counter(present_directory(workspace.models.base))
    longest = partial(_lengths, workspace, results, cache(partial(_rows, workspace)), count)
    steps = {name: step for name, step in workspace.config.steps.items() if STAGES[step.stage].trains}
    return {name: _estimate(workspace, name, shape, longest) for name in steps}


def memory_lines(estimates: Mapping[str, StepMemory], workspace: Workspace) -> list[str]:
    """The estimates as a person reads them, and a warning for each step that cannot fit."""
    if not estimates:
        return []
    needs = [f"{name} {'' if each.known else 'up to '}{size_text(each.peak)}" for name, each in estimates.items()]
    device = next(iter(estimates.values())).device
    has = f"; {workspace.hardware.device} has {size_text(device)}" if device else ""
    lines = [f"memory, estimated: {', '.join(needs)}{has}"]
    for name, each in estimates.items():
        if not each.fits:
            lines.append(_warning(name, each, workspace.config.settings[name], workspace.config.steps[name].stage))
    return lines


def _warning(name: str, each: StepMemory, settings: TrainingConfig, stage: str) -> str:
    shorter = "max_new_tokens" if isinstance(settings, ReinforceConfig) else "max_length"
    choices = [f"a smaller {stage}.batch_size (with more grad_accum)", f"a smaller {stage}.{shorter}"]
    if not settings.gradient_checkpointing:
        choices.append(f"{stage}.gradient_checkpointing=true")
    parts = sorted(each.memory.parts().items(), key=lambda part: -part[1])[:2]
    most = " and ".join(f"{part} {size_text(size)}" for part, size in parts)
    return (
        f"warning: {name} {'does' if each.known else 'may'} not fit into memory (most of it: {most}); "
        f"try {', '.join(choices)}, or a smaller model"
    )


def _estimate(
    workspace: Workspace, name: str, shape: ModelShape, longest: Callable[[Step, int], list[Lengths]]
) -> StepMemory:
    hardware = workspace.training_hardware
    processes = hardware.num_processes
    part = share(workspace.config.settings[name], processes)
    settings = replace(workspace.config.settings[name], batch_size=part.batch_size, grad_accum=part.grad_accum)
    lengths = longest(workspace.config.steps[name], settings.batch_size)
    batch = micro_batch(settings, hardware, lengths)
    memory = step_memory(shape, hardware, settings, batch, processes if is_sharded(hardware.accelerate) else 1)
    together = processes if hardware.device == "cpu" else 1
    return StepMemory(name, memory, device_memory(hardware), together, bool(lengths))


def _lengths(
    workspace: Workspace,
    results: Mapping[str, StageResult],
    rows_of: Callable[[str], Sequence[Row]],
    count: Count,
    step: Step,
    number: int,
) -> list[Lengths]:
    """The longest rows of a step; of one whose rows another step has yet to make, with replies of its longest."""
    if step.data_step is None:
        return longest_rows(rows_of(str(step.data)), number, count)
    if step.data_step in results:
        made = _readable(lambda: read_rows(results[str(step.data_step)].artifacts["train"]))
        return longest_rows(made, number, count)
    source = workspace.config.steps[step.data_step]
    reply: int = workspace.config.settings[step.data_step].max_new_tokens
    rows = longest_rows(rows_of(str(source.data)), number, count) if source.data else []
    return [Lengths(row.prompt, (reply + 1, reply + 1)) for row in rows]


def _rows(workspace: Workspace, source: str) -> Sequence[Row]:
    """The rows of a source: as prepared before, or of a file or a generator of Ratchet; none if unusable."""
    prepared = workspace.suites.folder(source) / "train.jsonl"
    config = workspace.config.data[source]
    if prepared.is_file():
        return _readable(lambda: read_rows(prepared))
    generated = config.source.startswith((PREFIX, GYM_PREFIX))
    if config.source.startswith(_OWN) or (not generated and source_file(config.source, workspace.base_dir) is not None):
        return _readable(lambda: read_rows_of(config, workspace.base_dir))
    return []


def _readable(read: Callable[[], Sequence[Row]]) -> Sequence[Row]:
    """Rows, or none where they cannot be read: a run says what is wrong with them."""
    try:
        return read()
    except (UserError, OSError, ValueError, TypeError):
        return []
