"""The sections of the stages that measure, field by field: rewards (audit), models (probe, evaluate, gate).

What holds of all sections (defaults, `outcome=False`, plain dataclasses) stands in `conf.schema`.
"""

import difflib
from dataclasses import dataclass, field

from conf.errors import ConfigError
from conf.options import option

AUDIT_REFERENCE = "reference"

AUDIT_POLICIES = (
    "empty", "whitespace", "empty_object", "smallest_instance", "prompt", "padding", "commonest_reference",
    "best_constant", "all_references", "other_reference", "one_tool",
)  # fmt: skip
"""The policies of an audit (see `rewards.policies`)."""


@dataclass
class AuditConfig:
    """Policies that do no work, scored by the rewards of a step: what they earn, a model will learn."""

    warn: float = option(0.5, gt=0)
    """Share of the reference's total from which on a policy earns a warning."""
    stop: float = option(0.9, gt=0)
    """Share of the reference's total from which on a policy stops the pipeline."""
    allow: list[str] = field(default_factory=list)
    """Policies (or `reference`) whose findings are acknowledged: they are shown and stop nothing."""
    max_rows: int = option(200, ge=1)
    """Use only the first training rows."""
    max_new_tokens: int | None = option(None, ge=1)
    """Longest completion of a policy, in tokens; that of the reinforce step it stands before when absent, else 64."""

    def __post_init__(self) -> None:
        """Keep the two thresholds in order, and know the policies that are acknowledged."""
        known = [AUDIT_REFERENCE, *AUDIT_POLICIES]
        for name in self.allow:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise ConfigError(f"allow: there is no policy {name!r}; {hint}policies: {', '.join(known)}")
        if self.warn > self.stop:
            raise ConfigError(f"warn: must be at most stop ({self.stop:g}), got {self.warn:g}")


@dataclass
class ProbeConfig:
    """Samples of the start model, scored by a step's own rewards, to see whether there is anything to reinforce."""

    prompts: int = option(13, ge=1)
    """Training prompts sampled."""
    samples: int = option(8, ge=2)
    """Completions per prompt."""
    temperature: float | None = option(None, gt=0)
    """Sampling temperature; that of the reinforce step it stands before when absent."""
    max_new_tokens: int | None = option(None, ge=1)
    """Longest completion, in tokens; that of the reinforce step it stands before when absent."""
    group_sizes: list[int] = field(default_factory=list)
    """Group sizes to predict groups without variance for; that of the reinforce step and its double when empty."""
    success: str | None = None
    """Reward whose value tells success; the total when absent."""
    success_at: float | None = None
    """Value that is a success; when absent, what the row's own reference earns."""
    min_success: float = option(0.03, ge=0, le=1)
    """Success rate below which the pipeline stops: there is nothing to reinforce yet."""
    max_success: float = option(0.97, ge=0, le=1)
    """Success rate above which the probe warns: there is little left to learn."""
    force: bool = False
    """Go on all the same; the finding is shown."""
    otherwise: str | None = None
    """Step to take where the success rate is too low, e.g. a short sft; the pipeline goes on from its model."""
    batch_size: int = option(16, ge=1)
    """Prompts sampled at once."""

    def __post_init__(self) -> None:
        """Keep the two thresholds in order, and the group sizes possible."""
        if self.min_success > self.max_success:
            raise ConfigError(f"min_success: must be at most max_success ({self.max_success:g})")
        if any(size < 2 for size in self.group_sizes):
            raise ConfigError(f"group_sizes: a group has at least 2 completions, got {self.group_sizes}")


@dataclass
class ScoringConfig:
    """How models are scored on suites."""

    batch_size: int = option(32, ge=1)
    """Prompts answered at once."""
    n_samples: int = option(8, ge=0)
    """Rows whose replies by every model are kept side by side in samples.jsonl."""
    recheck: int = option(32, ge=0)
    """Rows of every suite that the start model answers again in other batches: the noise floor of the scores."""
    drift_rows: int = option(32, ge=0)
    """Prompts of the `general` suites on which the divergence from the original base is measured; 0 leaves it out."""


@dataclass
class EvaluateConfig(ScoringConfig):
    """Replies of every model of the chain to the same held-out rows, scored by the same rewards."""


@dataclass
class GateConfig(ScoringConfig):
    """The decision whether the start model ships: the task better than the baseline, no guard worse."""

    min_gain: float = option(0.0, ge=0)
    """Smallest gain of every task suite's mean score that is worth shipping."""
    confidence: float = option(0.95, gt=0.5, lt=1)
    """Of the two-sided intervals that decide; (1 - confidence) / 2 is the stated rate of false ships."""
    resamples: int = option(10_000, ge=1000)
    """Resamples of the bootstrap."""
    max_drift: float | None = option(None, gt=0)
    """Largest divergence from the original base, in nats per token; above it the model is held."""
    register: bool = False
    """Register what ships as the champion (see `registry`); without it a gate only decides, e.g. between stages."""
