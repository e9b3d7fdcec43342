"""A whole configuration, parsed: the typed form of everything a run needs, with every name in it resolved.

`flows` composes a plain mapping with Hydra (or reads it from JSON) and hands it to `load_run`, once.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from conf.checks import ADDED, otherwise, with_success
from conf.errors import ConfigError
from conf.loader import dump, load
from conf.measuring import GateConfig
from conf.pipeline import NAME, load_pipeline
from conf.processes import check_processes
from conf.reward_base import RewardConfig
from conf.rewards import load_rewards
from conf.schema import DataConfig, RatchetConfig, Split, SuiteConfig, SuiteRole
from conf.steps import STAGES, Step, step_settings
from conf.sweep import with_budget
from conf.training import ReinforceConfig


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run's configuration.

    Attributes:
        sections: The configuration as the schema has it.
        steps: The pipeline, in an order in which it can run.
        settings: Each step's typed settings (its stage's section and the step's own `set`).
        data: Data sources by name.
        rewards: Reward sets by name.
        suites: Evaluation suites by name.
    """

    sections: RatchetConfig
    steps: Mapping[str, Step]
    settings: Mapping[str, Any]
    data: Mapping[str, DataConfig]
    rewards: Mapping[str, Mapping[str, RewardConfig]]
    suites: Mapping[str, SuiteConfig]

    @property
    def detours(self) -> dict[str, str]:
        """For every probe that names one, the step to take where it finds too little (`probe.otherwise`)."""
        return otherwise(self.settings)

    def suite_names(self, step: Step) -> list[str]:
        """The suites a step scores: those it names, else all configured ones; none for stages that take no suites."""
        takes_suites = "suites" in STAGES[step.stage].needs
        return (step.suites or list(self.suites)) if takes_suites else []


def load_run(values: Mapping[str, Any]) -> RunConfig:
    """Parse and check a whole configuration.

    Raises:
        ConfigError: Names the key and what would be right.
    """
    sections = load(RatchetConfig, values)
    if not re.fullmatch(r"\w[\w.-]*", sections.name):
        raise ConfigError(f"name: becomes a directory's; use letters, digits, _ . and -, got {sections.name!r}")
    stage_sections = {stage: dump(getattr(sections, stage)) for stage in STAGES}
    steps = load_pipeline(sections.pipeline, stage_sections)
    settings = {name: step_settings(name, step, stage_sections[step.stage]) for name, step in steps.items()}
    config = RunConfig(
        sections=sections,
        steps=steps,
        settings=with_budget(with_success(settings, steps, sections.probe), steps, sections.sweep.budget),
        data=_named(DataConfig, sections.data, "data"),
        rewards={name: load_rewards(value, f"reward.{name}") for name, value in _groups(sections.reward, "reward")},
        suites=_named(SuiteConfig, sections.suite, "suite"),
    )
    _check_names(config)
    check_processes(steps, settings, sections.hardware.num_processes)
    return config


def check_pins(config: RunConfig, keys: Iterable[str]) -> None:
    """Refuse overrides of settings that a step pins in its `set`: they would do nothing.

    So would the number of steps where a budget decides it.

    Args:
        config: What came of the overrides.
        keys: The settings that they name, e.g. `reinforce.beta`.

    Raises:
        ConfigError: Names the key, the step, and the key to override instead.
    """
    for key in keys:
        if key == "reinforce.max_steps" and config.sections.sweep.budget.is_set:
            raise ConfigError(f"{key}: sweep.budget decides the number of steps; leave one of them out")
        stage, _, setting = key.partition(".")
        for name, step in config.sections.pipeline.items():  # as declared: what a check takes from its step is no pin
            path = setting.split(".") if setting else []
            pins = step.get("set") if name in config.steps else None
            if pins and step["stage"] == stage and _contains(pins, path):
                instead = ".".join(["pipeline", name, "set", *path])
                raise ConfigError(f"{key}: step {name!r} pins this setting; override {instead} instead")


def _contains(settings: Any, path: list[str]) -> bool:
    """Whether a nested mapping says anything at, above or below a path."""
    for part in path:
        if not isinstance(settings, Mapping):
            return True
        if part not in settings:
            return False
        settings = settings[part]
    return True


def _named(cls: type[Any], values: Mapping[str, Any], group: str) -> dict[str, Any]:
    return {name: load(cls, value, f"{group}.{name}") for name, value in _groups(values, group)}


def _groups(values: Mapping[str, Any], group: str) -> Iterable[tuple[str, Any]]:
    """The named members of a group; tells a file that lacks its package line from a mistake inside one."""
    for name, value in values.items():
        bare_reward = group == "reward" and isinstance(value, Mapping) and isinstance(value.get("type"), str)
        if not isinstance(value, Mapping) or bare_reward:
            raise ConfigError(
                f"{group}.{name}: expected a mapping under a name of its own; "
                f"a file conf/{group}/NAME.yaml starts with the line '# @package {group}.NAME'"
            )
        yield str(name), value


def _check_names(config: RunConfig) -> None:
    own_first = sorted(config.steps.items(), key=lambda item: item[1].stage in ADDED)
    for name, step in own_first:
        if isinstance(step.data, str):
            _check_name(step.data, config.data, f"pipeline.{name}.data", "data")
        if step.reward is not None:
            _check_name(step.reward, config.rewards, f"pipeline.{name}.reward", "reward")
        for suite in step.suites:
            _check_name(suite, config.suites, f"pipeline.{name}.suites", "suite")
        if "suites" in STAGES[step.stage].needs and not config.suites:
            raise ConfigError(f"pipeline.{name}: needs at least one suite, e.g. suite=[arithmetic]")
    for name, step in config.steps.items():
        if step.reward is not None:
            _check_success(name, config)
    for name, suite_config in config.suites.items():
        if name in _MEASURES:
            raise ConfigError(f"suite.{name}: this name is a measure's ({', '.join(_MEASURES)}); choose another")
        if not NAME.fullmatch(name):
            raise ConfigError(f"suite.{name}: becomes a metric's name; use letters, digits, _ and -")
        if suite_config.data is not None:
            _check_name(suite_config.data, config.data, f"suite.{name}.data", "data")
        for key in ("reward", "information"):
            rewards = getattr(suite_config, key)
            if rewards is not None:
                _check_name(rewards, config.rewards, f"suite.{name}.{key}", "reward")
    _check_gates(config)
    _check_judges(config)
    _check_vllm(config)


_MEASURES = ("rows", "gain", "noise", "drift", "tokens", "truncated", "information")
"""What metrics are called that are not a suite's score; those are called like the suite."""


def _check_gates(config: RunConfig) -> None:
    """A gate looks at what must get better, too; and it can only bound a drift that is measured."""
    for name, step in config.steps.items():
        if step.stage != "gate":
            continue
        roles = [config.suites[suite].role for suite in config.suite_names(step)]
        if SuiteRole.task not in roles:
            raise ConfigError(f"pipeline.{name}: a gate needs a suite with role: task, which must get better")
        gate: GateConfig = config.settings[name]
        unseen = {Split.gate} if gate.register else {Split.gate, Split.select}
        for suite in config.suite_names(step):
            if (split := config.suites[suite].split) not in unseen:
                raise ConfigError(
                    f"suite.{suite}.split: got {split.name}; step {name!r} (gate) decides from rows that no stage and "
                    "no choice has looked at, those of the gate split (or select, for a gate that registers nothing)"
                )
        if gate.max_drift is not None and not (SuiteRole.general in roles and gate.drift_rows):
            raise ConfigError(
                f"pipeline.{name}: gate.max_drift needs a suite with role: general, on whose prompts drift is measured "
                "(and drift_rows above 0); add one, or leave max_drift out"
            )


def _check_vllm(config: RunConfig) -> None:
    """What vLLM samples from must be what is trained."""
    for name, settings in config.settings.items():
        if isinstance(settings, ReinforceConfig) and settings.vllm.mode and config.sections.hardware.load_in_4bit:
            raise ConfigError(
                f"pipeline.{name}: reinforce.vllm.mode goes without hardware.load_in_4bit: an adapter that is merged "
                "into 4-bit weights is rounded away; leave out one of them"
            )


def _check_judges(config: RunConfig) -> None:
    """A judge has the baseline's reply to compare with."""
    for name, step in config.steps.items():
        judged = [suite for suite in config.suite_names(step) if config.suites[suite].judge]
        if judged and step.baseline is None:
            raise ConfigError(
                f"pipeline.{name}: suite {judged[0]!r} has a judge, which compares with the replies of a baseline; "
                "name one, e.g. baseline: base"
            )


def _check_success(name: str, config: RunConfig) -> None:
    """The reward that tells success must be one of the step's."""
    settings, rewards = config.settings[name], config.rewards[str(config.steps[name].reward)]
    for key, section in (("probe", settings), ("reinforce.difficulty", getattr(settings, "difficulty", None))):
        success = getattr(section, "success", None)
        if success is not None and success not in rewards:
            raise ConfigError(
                f"{key}.success: step {name!r} has no reward {success!r}; its rewards: {', '.join(rewards)}"
            )


def _check_name(name: str, known: Mapping[str, Any], where: str, group: str) -> None:
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise ConfigError(
            f"{where}: no {group} is named {name!r} (there are: {names}); add conf/{group}/{name}.yaml to the "
            f"choice, e.g. {group}=[{','.join([*known, name])}]"
        )
