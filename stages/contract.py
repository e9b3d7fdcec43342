"""The contract of every stage, and the place to start reading.

A stage is a plain function `run_<stage>(config, context) -> StageResult`. It receives models, files and two callbacks,
writes into `context.out_dir`, and knows nothing about Prefect, Hydra or MLflow. A stage that trains leaves one new
adapter; the next stage folds it (with all before it) into the base weights and goes on from there.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from conf.reward_base import RewardConfig
from conf.schema import ModelConfig, SuiteRole
from conf.suites import JudgeConfig, LmEvalConfig

FOLD_VERSION = 1
"""Changes whenever the same base and adapters would fold to other weights; part of a model's identity."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One LoRA adapter on disk. `sha256` is over its weights and its configuration."""

    path: Path
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ModelRef:
    """A base model and the ordered adapters to fold into it.

    Attributes:
        config: The model section: id, chat template, stop tokens.
        revision: The resolved revision: a commit for hub models, None for others.
        sha256: Identity of the base: weights, model configuration, tokenizer.
        dtype: Number type of the weights (float32, bfloat16 or float16).
        adapters: In the order in which they are folded.
    """

    config: ModelConfig
    revision: str | None = None
    sha256: str
    dtype: str = "float32"
    adapters: tuple[Adapter, ...] = ()

    @property
    def identity(self) -> str:
        """Hash of base, adapters in order, dtype and fold version: equal identities are equal weights."""
        parts = [self.sha256, *(adapter.sha256 for adapter in self.adapters), self.dtype, FOLD_VERSION]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def base(self) -> "ModelRef":
        """The same model without any adapter."""
        return replace(self, adapters=())

    def with_adapter(self, adapter: Adapter) -> "ModelRef":
        """The model that results from folding one more adapter."""
        return replace(self, adapters=(*self.adapters, adapter))


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Where a stage computes, resolved: no `auto` is left.

    Attributes:
        device: `cpu`, `cuda` or `mps`.
        dtype: Number type of the weights.
        threads: CPU threads of all processes together.
        num_processes: How many train together (see `stages.ranks`).
        accelerate: What they take from a config file of accelerate (see `stages.accelerate_config`).
        load_in_4bit: Whether the model that is trained is held in 4 bits (see `stages.quantise`).
    """

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    num_processes: int = 1
    accelerate: Mapping[str, Any] = field(default_factory=dict)
    load_in_4bit: bool = False

    @property
    def alone(self) -> "Hardware":
        """The same for stages that do not train: one process, in full precision."""
        return replace(self, num_processes=1, accelerate={}, load_in_4bit=False)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """An evaluation set: a file of prepared rows and the rewards whose total scores a reply to one of them.

    Attributes:
        id: Hash of everything but the model that determines its scores; scores are kept and found again by it.
        information: Rewards that are shown beside the score.
        samples: Replies per row: one is greedy, of several each is sampled at `temperature`.
        judge: In place of rewards, who compares replies with the baseline's.
        lm_eval: In place of rewards, tasks of lm-evaluation-harness, whose rows these are.
    """

    role: SuiteRole
    rows: Path
    rewards: Mapping[str, RewardConfig]
    max_rows: int | None = None
    max_new_tokens: int = 64
    id: str = ""
    tolerance: float = 0.05
    information: Mapping[str, RewardConfig] = field(default_factory=dict)
    samples: int = 1
    temperature: float = 1.0
    judge: JudgeConfig | None = None
    lm_eval: LmEvalConfig | None = None


LogMetrics = Callable[[Mapping[str, float]], None]
"""Called with one row per optimiser step (see `stages.progress`); a row always has `step`."""

Progress = Callable[[str, int, int], None]
"""Called during long work with what is being done, and how many of how many units are finished."""


class Interrupted(Exception):
    """A stage ended early because it was asked to. What it has done is kept; called again, it goes on from there."""


def _ignore(*_: Any) -> None:
    """Stand in for the callbacks of a stage that nobody watches."""


def _never() -> bool:
    """Stand in for whoever could ask a stage to end early."""
    return False


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """What a stage is given.

    Attributes:
        models: `start` always; `baseline` and `anchor` where the step names one; `chain.<step>` for every step on the
            way to `start`, and before them what the first of them started from, e.g. `chain.base`; `models.<step>` for
            further models a step lists.
        out_dir: The stage's own directory in the store; it exists, and has what an interrupted attempt left there.
        seed: Seeds everything random in the stage.
        hardware: Device, number type, threads.
        data: Files of prepared rows (JSON lines, see `stages.rows`): `train`, `select`, `gate`.
        rewards: The step's rewards, by name.
        suites: The evaluation suites, by name.
        scores: Directory in which scores are kept for all steps and runs, each under what determines it.
        log_metrics: Takes one row of numbers per optimiser step.
        progress: Told how far long work is.
        say: Told what a person should know at once.
        stopping: Whether the stage is asked to end early: it then keeps what it has done and raises `Interrupted`.
    """

    models: Mapping[str, ModelRef]
    out_dir: Path
    seed: int
    hardware: Hardware = field(default_factory=Hardware)
    data: Mapping[str, Path] = field(default_factory=dict)
    rewards: Mapping[str, RewardConfig] = field(default_factory=dict)
    suites: Mapping[str, Suite] = field(default_factory=dict)
    scores: Path | None = None
    log_metrics: LogMetrics = _ignore
    progress: Progress = _ignore
    say: Callable[[str], None] = _ignore
    stopping: Callable[[], bool] = _never

    @property
    def start(self) -> ModelRef:
        """The model the stage starts from."""
        return self.models["start"]


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """What a stage leaves.

    Attributes:
        model: The model that follows: start plus a new adapter, or the start model itself for stages that do not train.
        metrics: Final numbers by name, e.g. `task.sft` or `train_rows`.
        artifacts: Files by name. Those named `train`, `select` and `gate` are prepared rows that a later step can
            take with `data: {from: <step>}`.
        receipt: What the fold of the new adapter proves about itself (`stages.receipt`), as plain JSON.
        verdict: From stages that decide: `ship`, `hold` or `inconclusive`; `stop` ends the pipeline here, `otherwise`
            asks for the step that `probe.otherwise` names.
        report: What a person should read of it, as text: a table, findings, a recommendation.
    """

    model: ModelRef
    metrics: Mapping[str, float] = field(default_factory=dict)
    artifacts: Mapping[str, Path] = field(default_factory=dict)
    receipt: Mapping[str, Any] | None = None
    verdict: str | None = None
    report: str = ""
