"""The sections of the stages that train, and of the one that makes pairs to train on, field by field.

What holds of all sections (defaults, `outcome=False`, plain dataclasses) stands in `conf.schema`.
"""

import enum
from dataclasses import dataclass, field
from typing import Any

from conf.errors import ConfigError
from conf.options import option
from conf.vllm import VLLMConfig


class PreferenceMethod(enum.Enum):
    """The loss of the preference stage."""

    dpo = "dpo"
    orpo = "orpo"


class Schedule(enum.Enum):
    """How the learning rate goes on after warm-up, by its transformers name."""

    linear = "linear"
    cosine = "cosine"
    cosine_with_restarts = "cosine_with_restarts"
    polynomial = "polynomial"
    inverse_sqrt = "inverse_sqrt"
    constant = "constant"
    constant_with_warmup = "constant_with_warmup"


class Keep(enum.Enum):
    """Which adapter a training stage leaves."""

    last = "last"
    best = "best"


@dataclass
class LoraConfig:
    """The adapter a training stage adds."""

    r: int = option(16, ge=1)
    """Rank."""
    alpha: float = option(32.0, gt=0)
    """Scale: the update is multiplied by alpha / r (alpha / sqrt(r) when rank-stabilised)."""
    dropout: float = option(0.0, ge=0, lt=1)
    """Dropout on the adapter's input."""
    target_modules: list[str] = field(default_factory=lambda: ["all-linear"])
    """Names of the modules to adapt; `all-linear` is every linear layer but the output head."""
    rank_stabilised: bool = False
    """Scale by alpha / sqrt(r) (rsLoRA)."""


@dataclass
class TrainingConfig:
    """What the training stages have in common. An optimiser step uses `batch_size x grad_accum` rows (or prompts)."""

    learning_rate: float = option(1e-4, gt=0)
    """Peak learning rate (AdamW)."""
    schedule: Schedule = Schedule.linear
    """Learning-rate schedule."""
    warmup_steps: int = option(0, ge=0)
    """Optimiser steps of linear warm-up."""
    weight_decay: float = option(0.0, ge=0)
    """AdamW weight decay."""
    max_grad_norm: float = option(1.0, gt=0)
    """Gradients are clipped to this norm."""
    epochs: float = option(1.0, gt=0)
    """Passes over the data, when `max_steps` is absent."""
    max_steps: int | None = option(None, ge=1)
    """Optimiser steps; beats `epochs`."""
    batch_size: int = option(8, ge=1)
    """Rows of a micro-batch; for reinforce, prompts (whole groups)."""
    grad_accum: int = option(1, ge=1)
    """Micro-batches per optimiser step."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    shared_prefix: bool = True
    """Compute what sequences begin with in common once. Without it, and with ORPO, TRL does all: slower, to the same
    result."""
    save_steps: int = option(10, ge=1, outcome=False)
    """Optimiser steps from checkpoint to checkpoint: an interrupted stage goes on from the last one."""
    keep_checkpoints: int = option(2, ge=1, outcome=False)
    """Checkpoints kept on disk while the stage trains."""
    eval_steps: int | None = option(None, ge=1)
    """Optimiser steps from look to look at held-out rows of the `select` split; none when absent."""
    eval_rows: int = option(64, ge=1)
    """Held-out rows looked at, the first ones."""
    keep: Keep = Keep.last
    """Which adapter is left: that of the `last` step, or the one that did `best` on the held-out rows."""
    n_samples: int = option(4, ge=0)
    """Held-out prompts the finished stage answers into samples.jsonl."""
    sample_max_new_tokens: int = option(64, ge=1)
    """Longest of these replies, in tokens."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """The adapter to train."""
    trainer: dict[str, Any] = field(default_factory=dict)
    """Any further field of the installed TRL config class; fields Ratchet owns are refused by name."""

    def __post_init__(self) -> None:
        """See that there is something to be best by."""
        if self.keep is Keep.best and self.eval_steps is None:
            raise ConfigError("eval_steps: keep: best needs to know how often to look at held-out rows, e.g. 10")


@dataclass
class SFTConfig(TrainingConfig):
    """Supervised fine-tuning on prompt and reply; the loss covers the reply and its end token."""

    learning_rate: float = option(2e-4, gt=0)
    """Peak learning rate (AdamW)."""
    max_length: int = option(1024, ge=8)
    """Longest row in tokens; longer replies are cut, rows left without any reply are dropped and counted."""


@dataclass
class PairsConfig:
    """Preference pairs from the start model's own samples, best against worst by the rewards."""

    samples: int = option(8, ge=2)
    """Completions sampled per prompt."""
    temperature: float = option(1.0, gt=0)
    """Sampling temperature."""
    max_new_tokens: int = option(64, ge=1)
    """Longest completion, in tokens."""
    max_prompts: int | None = option(None, ge=1)
    """Use only the first prompts of the training rows."""
    min_gap: float = option(0.1, gt=0)
    """Smallest difference of the totals between best and worst; closer prompts give no pair."""
    batch_size: int = option(8, ge=1)
    """Prompts sampled at once."""


@dataclass
class PreferenceConfig(TrainingConfig):
    """Preference optimisation on pairs of replies; the reference model is the start model."""

    method: PreferenceMethod = PreferenceMethod.dpo
    """`dpo` or `orpo`."""
    learning_rate: float = option(5e-5, gt=0)
    """Peak learning rate (AdamW)."""
    beta: float = option(0.1, gt=0)
    """DPO: strength of the pull to the reference; ORPO: weight of the odds-ratio term."""
    max_length: int = option(1024, ge=8)
    """Longest row (prompt and reply) in tokens."""


@dataclass
class DifficultyConfig:
    """Train only on prompts that the start model sometimes solves; the others give groups without variance."""

    min_success: float = option(0.0, ge=0, le=1)
    """Smallest success rate of a prompt that is kept; nothing is measured while the band has all rates."""
    max_success: float = option(1.0, ge=0, le=1)
    """Largest success rate of a prompt that is kept."""
    samples: int = option(8, ge=2)
    """Completions per prompt to measure it with."""
    success: str | None = None
    """As in `probe`, whose settings are taken where both this and `success_at` are absent."""
    success_at: float | None = None
    """As in `probe`."""
    batch_size: int = option(16, ge=1)
    """Prompts measured at once."""

    def __post_init__(self) -> None:
        """Keep the two thresholds in order."""
        if self.min_success > self.max_success:
            raise ConfigError(f"min_success: must be at most max_success ({self.max_success:g})")

    @property
    def leaves_out(self) -> bool:
        """Whether there are success rates outside of the band."""
        return self.min_success > 0 or self.max_success < 1


@dataclass
class ReinforceConfig(TrainingConfig):
    """On-policy GRPO: groups of completions, scored by rewards, one update per fresh batch."""

    learning_rate: float = option(1e-4, gt=0)
    """Peak learning rate (AdamW)."""
    schedule: Schedule = Schedule.constant
    """Learning-rate schedule."""
    beta: float = option(0.02, ge=0)
    """Weight of the KL penalty against the start model."""
    group_size: int = option(8, ge=2)
    """Completions per prompt."""
    temperature: float = option(1.0, gt=0)
    """Temperature of sampling and of log-probabilities."""
    max_new_tokens: int = option(64, ge=1)
    """Longest completion, in tokens."""
    mask_truncated: bool = False
    """Leave completions cut at `max_new_tokens` out of the loss."""
    batch_size: int = option(8, ge=1)
    """Prompts (whole groups) of a micro-batch."""
    difficulty: DifficultyConfig = field(default_factory=DifficultyConfig)
    """Keep only prompts whose success rate, measured on the start model, lies in a band."""
    resample: int = option(0, ge=0)
    """How often per step groups without variance are replaced by groups of fresh prompts."""
    vllm: VLLMConfig = field(default_factory=VLLMConfig)
    """Let vLLM sample."""

    def __post_init__(self) -> None:
        """See that with vLLM the policy is one model, and not another one per forward pass."""
        super().__post_init__()
        if self.vllm.mode is not None and self.lora.dropout:
            raise ConfigError(
                "lora.dropout: must be 0 with reinforce.vllm, which compares the log-probabilities of several forward "
                f"passes; got {self.lora.dropout:g}"
            )
