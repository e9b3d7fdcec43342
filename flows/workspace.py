"""A configuration meets a machine: base model, data, store and hardware are resolved here, without loading any model.

Both `ratchet plan` and the flow ask it what a step would be given, and so agree on what is cached.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conf.errors import ConfigError
from conf.reward_base import RewardConfig
from conf.run import RunConfig
from conf.schema import SuiteConfig
from conf.steps import STAGES, Step
from flows.door import check_workspace
from flows.fingerprint import digest, step_parts
from flows.models import Models
from flows.scores.suites import Suites
from flows.store import Entry, Store
from rewards.command import notices
from stages.cache import file_sha256
from stages.contract import Hardware, ModelRef, StageResult
from stages.hardware import resolve_hardware


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """Everything a step is given.

    `data_id` has the identity of the step's rows; `suite_ids` that of each suite's rows and rewards; `parts` all that
    can change the outcome, as plain JSON.
    """

    name: str
    step: Step
    settings: Any
    models: Mapping[str, ModelRef]
    data: str | Mapping[str, Path] | None
    data_id: Any
    rewards: Mapping[str, RewardConfig]
    suites: Mapping[str, SuiteConfig]
    suite_ids: Mapping[str, Any]
    hardware: Hardware
    parts: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean that the work need not be done again."""
        return digest(self.parts)


class Workspace:
    """The resolved surroundings of one run.

    Attributes:
        hardware: Where models are folded, sampled and scored: by one process, in full precision.
        training_hardware: Where the steps that train compute.

    Raises:
        UserError: The model, the device or the runs directory cannot be had.
    """

    def __init__(self, config: RunConfig, base_dir: Path | None = None) -> None:
        self.config = config
        self.base_dir = base_dir or Path.cwd()
        self.runs_dir = (self.base_dir / config.sections.runs_dir).resolve()
        self.store = Store(self.runs_dir)
        self.training_hardware: Hardware = resolve_hardware(config.sections.hardware, self.base_dir)
        self.hardware = self.training_hardware.alone
        self.models = Models(config, self.runs_dir, self.hardware.dtype)
        self.suites = Suites(config, self.store.root, self.base_dir)

    def inputs(self, name: str, results: Mapping[str, StageResult]) -> StepInputs:
        """What a step is given, once the steps it needs are done."""
        step = self.config.steps[name]
        rewards = self.config.rewards[step.reward] if step.reward else {}
        suites = self.suites.of(step)
        hardware = self._hardware_of(step)
        values: dict[str, Any] = {
            "models": self.models.of_step(name, results),
            "data_id": self._data_id(step, results),
            "rewards": rewards,
            "suite_ids": {suite: self.suites.identity(suite, settings) for suite, settings in suites.items()},
        }
        return StepInputs(
            name=name,
            step=step,
            settings=self.config.settings[name],
            data=self._step_data(step, results),
            suites=suites,
            hardware=hardware,
            parts=step_parts(self.config, name, hardware, self.base_dir, **values),
            **values,
        )

    def is_due(self, name: str, results: Mapping[str, StageResult]) -> bool:
        """Whether a step is to be done: always, but for a detour, which a probe before it must have asked for."""
        return not self.askers(name) or bool(self._asking(name, results))

    def held_by(self, name: str, results: Mapping[str, StageResult]) -> str | None:
        """The gate that keeps a step from being done: one that did not ship, and that the step needs, by itself or not.

        A gate that stands at the end of its branch keeps nothing from being done.
        """
        for need in self.config.steps[name].needs():
            held = need in results and results[need].verdict in ("hold", "inconclusive")
            gate = need if held else self.held_by(need, results)
            if gate:
                return gate
        return None

    def finish(self, name: str, result: StageResult, results: dict[str, StageResult]) -> None:
        """Take a step's result down; a probe that asked for the step as its detour hands on the detour's model."""
        results[name] = replace(result, model=self.models.ours(result.model))
        for probe in self._asking(name, results):
            results[probe] = replace(results[probe], model=results[name].model)

    def askers(self, name: str) -> list[str]:
        """The probes that may ask for a step as their detour."""
        return [probe for probe, detour in self.config.detours.items() if detour == name]

    def _asking(self, name: str, results: Mapping[str, StageResult]) -> list[str]:
        """Those of them that did."""
        return [probe for probe in self.askers(name) if probe in results and results[probe].verdict == "otherwise"]

    def entry(self, inputs: StepInputs) -> Entry:
        """The place in the store for a step with these inputs."""
        return self.store.entry(inputs.step.stage, inputs.fingerprint)

    def check(self, elsewhere: bool = False) -> None:
        """Try everything that can go wrong before a model is loaded (see `flows.door`).

        Args:
            elsewhere: Whether the steps run on another machine.

        Raises:
            UserError: The first thing that is wrong.
        """
        check_workspace(self, elsewhere)

    def notices(self) -> list[str]:
        """What a person should know before the run: what aliases mean, and what of the rewards it uses."""
        steps = self.config.steps.values()
        used = [step.reward for step in steps if step.reward]
        for suite in (suite for step in steps for suite in self.suites.of(step).values()):
            used += [name for name in (suite.reward, suite.information) if name]
        of_rewards = [line for name in dict.fromkeys(used) for line in notices(self.config.rewards[name])]
        return [*(f"{name}: {meaning}" for name, meaning in self.models.aliases.asked.items()), *of_rewards]

    def stage_data(self, inputs: StepInputs) -> Mapping[str, Path]:
        """The step's files of prepared rows."""
        return self.suites.prepared(inputs.data) if isinstance(inputs.data, str) else inputs.data or {}

    def _hardware_of(self, step: Step) -> Hardware:
        return self.training_hardware if STAGES[step.stage].trains else self.hardware

    def _step_data(self, step: Step, results: Mapping[str, StageResult]) -> str | Mapping[str, Path] | None:
        if step.data_step is None:
            return None if step.data is None else str(step.data)
        return {split: path for split, path in results[step.data_step].artifacts.items() if split in _SPLITS}

    def _data_id(self, step: Step, results: Mapping[str, StageResult]) -> Any:
        if step.data is None:
            return None
        if step.data_step is None:
            return self.suites.source_id(step.data)
        files = self._step_data(step, results)
        if not isinstance(files, Mapping) or "train" not in files:
            raise ConfigError(f"pipeline: step {step.data_step!r} left no rows to take")
        return {split: file_sha256(path) for split, path in files.items()}


_SPLITS = ("train", "select", "gate")
