"""What would stop a stage hours later, found before any model is loaded: rows, rewards on rows, TRL settings.

What needs the tokenizer, which loads transformers, is in `stages.lengths`; TRL is loaded only for a `trainer` mapping.
"""

import functools
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conf.errors import UserError
from conf.reward_base import IsolatedConfig, OnError, RewardConfig
from conf.training import Keep, ReinforceConfig, TrainingConfig
from rewards.calling import WAITING_TYPES
from rewards.scoring import RewardSet
from stages.accelerate_config import KEY, is_sharded
from stages.contract import Hardware, StageContext, Suite
from stages.order import require_step
from stages.rows import Row, read_rows

_LEARNT = {"sft": ("response",), "preference": ("chosen", "rejected")}
"""Fields without which a row has nothing to learn from, by stage."""

_FIRST = ("max_prompts", "max_rows")
"""Settings by which a stage takes only the first of its training rows."""


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """A step as its stage will be given it, as far as that is known before the run.

    Attributes:
        name: Of the step.
        stage: Its stage.
        settings: Typed settings of the stage.
        data: Files of prepared rows; empty where another step makes them.
        rewards: The step's rewards.
        suites: The suites it scores.
    """

    name: str
    stage: str
    settings: Any
    data: Mapping[str, Path] = field(default_factory=dict)
    rewards: Mapping[str, RewardConfig] = field(default_factory=dict)
    suites: Mapping[str, Suite] = field(default_factory=dict)


class Sources:
    """Prepared rows, each file read once, and where in the user's files they stand.

    Args:
        names: For every file of prepared rows the name of the data section and of the source that it comes from.
    """

    def __init__(self, names: Mapping[Path, tuple[str, str]]) -> None:
        self._names = names
        self.rows = functools.cache(read_rows)

    def section(self, path: Path) -> str:
        """The data section, as a key: `data.qa`."""
        return f"data.{self._names[path][0]}"

    def source(self, path: Path) -> str:
        """The source: a file, a function, a hub id."""
        return self._names[path][1]

    def place(self, path: Path, row: Row) -> str:
        """Where a row stands: `rows.jsonl, line 12`."""
        return f"{self.source(path)}, {row.place}"


def check_rows(steps: Sequence[PlannedStep], sources: Sources, folder: Path) -> None:
    """See that the steps find in their rows what they need, and enough of them.

    Args:
        steps: The pipeline's.
        sources: Their rows.
        folder: What relative paths in the rewards' settings are relative to.

    Raises:
        UserError: Names the row, the step and what is missing.
    """
    for step in steps:
        if step.data:
            _check_training(step, sources)
    scored = {(id(one.rewards), one.path, one.first): one for step in steps for one in _scored(step)}
    for one in scored.values():
        _check_references(one, sources, folder)


def _check_training(step: PlannedStep, sources: Sources) -> None:
    path = step.data["train"]
    rows = sources.rows(path)
    if not rows:
        raise UserError(
            f"{sources.section(path)}.held_out: 1 holds out all rows, which are for suites alone; step {step.name!r} "
            f"({step.stage}) needs rows to train on: name another source there, or lower it"
        )
    for row in [*rows, *sources.rows(step.data["select"])[: looked_at(step)]]:
        for name in _LEARNT.get(step.stage, ()):
            if getattr(row, name) is None:
                raise UserError(
                    f"{sources.place(path, row)}: has no {name}, which step {step.name!r} ({step.stage}) learns from; "
                    f"map one with {sources.section(path)}.{name}"
                )
    if isinstance(step.settings, TrainingConfig):
        try:
            require_step(step.settings, len(rows), "prompts" if step.stage == "reinforce" else "rows")
        except UserError as error:
            raise UserError(f"{sources.source(path)}: step {step.name!r} ({step.stage}): {error}") from None


def looked_at(step: PlannedStep) -> int:
    """How many held-out rows a training step looks at on the way."""
    return step.settings.eval_rows if getattr(step.settings, "eval_steps", None) else 0


@dataclass(frozen=True)
class _Scored:
    """Rewards, and the rows whose replies they will score: the first ones of a file, or all."""

    rewards: Mapping[str, RewardConfig]
    path: Path
    first: int | None


def _scored(step: PlannedStep) -> Iterator[_Scored]:
    if step.rewards and step.data:
        first = next((getattr(step.settings, name) for name in _FIRST if hasattr(step.settings, name)), None)
        yield _Scored(step.rewards, step.data["train"], first)
        yield _Scored(step.rewards, step.data["select"], looked_at(step))
    for suite in step.suites.values():
        yield _Scored(suite.rewards, suite.rows, suite.max_rows)
        yield _Scored(suite.information, suite.rows, suite.max_rows)


def _check_references(scored: _Scored, sources: Sources, folder: Path) -> None:
    """Score an empty reply to every row: what a reward cannot judge then is the fault of the row.

    Rewards that run programs or code of the user's take too long for that; the audit tries them.
    """
    light = {name: config for name, config in scored.rewards.items() if _is_light(config)}
    if not light:
        return
    rows = sources.rows(scored.path)[: scored.first]
    with RewardSet(light, folder) as judges:
        scores = judges.score_all([row.sample("") for row in rows])
    for row, score in zip(rows, scores, strict=True):
        for name, error in score.errors.items():
            raise UserError(
                f"{sources.place(scored.path, row)}: reward {name!r} cannot judge replies to this row: {error}; "
                f"mend the row, or the mapping in {sources.section(scored.path)}"
            )


def _is_light(config: RewardConfig) -> bool:
    isolated = isinstance(config, IsolatedConfig) or config.type in WAITING_TYPES
    return config.on_error is OnError.stop and not isolated


def check_sharding(steps: Sequence[PlannedStep], hardware: Hardware) -> None:
    """See that no step needs whole weights in every process, where FSDP or ZeRO-3 leaves each a part of them.

    Raises:
        UserError: One does; names its key.
    """
    if not is_sharded(hardware.accelerate):
        return
    if hardware.load_in_4bit:
        raise UserError(f"{KEY}: FSDP and ZeRO-3 cannot divide 4-bit weights; leave out hardware.load_in_4bit")
    for step in steps:
        if step.stage == "reinforce":
            raise UserError(
                f"{KEY}: step {step.name!r} (reinforce) samples from whole weights, which FSDP and ZeRO-3 divide; "
                "take ZeRO-1 or ZeRO-2, or leave the key out"
            )
        if getattr(step.settings, "keep", None) is Keep.best:
            raise UserError(
                f"{step.stage}.keep: best is not possible for step {step.name!r} where {KEY} divides the weights "
                "(FSDP, ZeRO-3); set it to last"
            )


def check_vllm(steps: Sequence[PlannedStep], hardware: Hardware) -> None:
    """See that what is to be sampled by vLLM can be; loads nothing.

    Raises:
        UserError: It is not installed, or there is no GPU for it.
    """
    for step in steps:
        if not isinstance(step.settings, ReinforceConfig) or step.settings.vllm.mode is None:
            continue
        where = f"step {step.name!r}: reinforce.vllm.mode: {step.settings.vllm.mode.name}"
        if importlib.util.find_spec("vllm") is None:
            raise UserError(
                f'{where} needs vLLM, which is not installed: pip install "ratchet[vllm]"; or leave it out, and '
                "Ratchet samples by itself"
            )
        if hardware.device != "cuda":
            raise UserError(
                f"{where} needs a GPU, and hardware.device is {hardware.device}: the extra ratchet[vllm] is of no use "
                "here; leave it out, and Ratchet samples by itself"
            )
        if step.settings.resample and hardware.num_processes > 1:
            raise UserError(
                f"step {step.name!r}: reinforce.resample: with vLLM and hardware.num_processes="
                f"{hardware.num_processes} all processes have to sample equally many; set it to 0"
            )


def check_trainers(steps: Sequence[PlannedStep], hardware: Hardware) -> None:
    """See that TRL takes what the `trainer` mappings say.

    Raises:
        ConfigError: Names the key and what would be right.
    """
    context = StageContext(models={}, out_dir=Path(), seed=0, hardware=hardware)
    for step in steps:
        if getattr(step.settings, "trainer", None):
            _arguments(step.stage)(step.settings, context, 1)


def _arguments(stage: str) -> Any:
    """What makes the arguments of a stage's TRL trainer; importing it is what loads TRL."""
    from stages.quiet import quiet

    quiet()
    if stage == "sft":
        from stages.sft import sft_arguments

        return sft_arguments
    if stage == "preference":
        from stages.preference import preference_arguments

        return preference_arguments
    from stages.grpo_arguments import grpo_arguments

    return grpo_arguments
