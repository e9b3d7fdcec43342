"""A step of a pipeline and the kinds of stages there are: what one needs to know of a stage without importing it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conf.loader import load
from conf.measuring import AuditConfig, EvaluateConfig, GateConfig, ProbeConfig
from conf.options import option
from conf.training import PairsConfig, PreferenceConfig, ReinforceConfig, SFTConfig

BASE = "base"
ALIASES = ("champion", "previous", "anchor")
"""Models of the registry that a step can name: what shipped last, what did before it, and what did first."""
RUN = "run/"
"""What an edge to a finished run begins with."""


def named_edge(edge: str) -> tuple[str, str]:
    """What a model is called in the scores, and what it is: `NAME:run/<id>` says both; elsewhere they are the same."""
    name, colon, what = edge.partition(":")
    return (name, what) if colon else (edge, edge)


def leads_out(edge: str) -> bool:
    """Whether an edge names a model that no step of the pipeline makes."""
    what = named_edge(edge)[1]
    return what in (BASE, *ALIASES) or what.startswith(RUN)


@dataclass(frozen=True)
class StageKind:
    """What the pipeline must know of a stage without importing it; one that uses no model computes on no device."""

    config: type
    needs: tuple[str, ...] = ()
    trains: bool = False
    makes_data: bool = False
    computes: bool = True


STAGES: dict[str, StageKind] = {
    "audit": StageKind(AuditConfig, needs=("data", "reward"), computes=False),
    "probe": StageKind(ProbeConfig, needs=("data", "reward")),
    "sft": StageKind(SFTConfig, needs=("data",), trains=True),
    "pairs": StageKind(PairsConfig, needs=("data", "reward"), makes_data=True),
    "preference": StageKind(PreferenceConfig, needs=("data",), trains=True),
    "reinforce": StageKind(ReinforceConfig, needs=("data", "reward"), trains=True),
    "evaluate": StageKind(EvaluateConfig, needs=("suites",)),
    "gate": StageKind(GateConfig, needs=("suites", "baseline")),
}
"""Every stage, its section of the configuration and what a step of it must name."""


@dataclass
class Step:
    """A named node of the pipeline."""

    stage: str = option()
    """Which stage."""
    start: str = BASE
    """Where its model comes from: a step, `base`, `run/<id>` for any finished run (`NAME:run/<id>` calls it NAME in the
    scores), or `champion` (or another alias of the registry)."""
    data: Any = None
    """Name of a data source, or `{from: <step>}` for rows that another step makes."""
    reward: str | None = None
    """Name of a reward set."""
    baseline: str | None = None
    """A further model to compare with, named as in `start`."""
    anchor: str | None = None
    """For a gate: a model that the guards are also compared with, so that small drops cannot add up over many runs."""
    models: list[str] = field(default_factory=list)
    """Further models for a stage that takes several (evaluate), named as in `start`."""
    suites: list[str] = field(default_factory=list)
    """Names of evaluation suites; all configured ones when empty."""
    after: list[str] = field(default_factory=list)
    """Steps that must be done before, though nothing is taken from them."""
    set: dict[str, Any] = field(default_factory=dict)
    """Settings of this step alone; they beat its stage's section."""
    audit: bool = True
    """Before a reinforce step: audit its rewards (see `audit`), unless an audit step of the pipeline does."""
    probe: bool = True
    """Before a reinforce step: probe the model it starts from (see `probe`), unless it starts at a probe step."""
    skip: bool = False
    """Leave the step out; steps that start at it start where it would have (`~pipeline.<step>` sets this)."""

    @property
    def data_step(self) -> str | None:
        """The step this one takes its rows from, if it takes them from one."""
        return self.data["from"] if isinstance(self.data, Mapping) else None

    @property
    def model_edges(self) -> list[str]:
        """Everything the step takes a model from, `start` first."""
        return [self.start, *(edge for edge in (self.baseline, self.anchor) if edge), *self.models]

    def needs(self) -> list[str]:
        """The names of the steps that come before."""
        models = [edge for edge in self.model_edges if not leads_out(edge)]
        return list(dict.fromkeys([*models, *([] if self.data_step is None else [self.data_step]), *self.after]))


def step_settings(name: str, step: Step, section: Mapping[str, Any]) -> Any:
    """The typed settings of a step: its stage's section, overlaid with the step's own `set`."""
    kind = STAGES[step.stage]
    load_checked: Any = load(kind.config, merged(section, step.set), f"pipeline.{name}.set" if step.set else step.stage)
    return load_checked


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested mappings as one; what stands in `above` wins."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return result
