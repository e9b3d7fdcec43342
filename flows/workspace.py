"""A configuration meets a machine: base model, data, store and hardware are resolved here, without loading any model.

Both `ratchet plan` and the flow ask it what a step would be given, and so agree on what is cached.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from conf.errors import ConfigError, UserError
from conf.reward_base import RewardConfig
from conf.run import RunConfig
from conf.schema import SuiteConfig
from conf.steps import ALIASES, BASE, STAGES, Step
from flows.aliases import Aliases
from flows.door import check_workspace
from flows.fingerprint import code_digest, digest, library_versions, outcome_fields, reward_parts, step_parts
from flows.references import find_run
from flows.store import Entry, Store
from rewards.command import notices
from stages.cache import file_sha256
from stages.contract import Hardware, ModelRef, StageResult, Suite
from stages.data import data_identity, prepare_once
from stages.hardware import resolve_hardware
from stages.harness import harness_identity, prepare_tasks
from stages.identity import resolve_model


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
    parts: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean that the work need not be done again."""
        return digest(self.parts)


class Workspace:
    """The resolved surroundings of one run.

    Raises:
        UserError: The model, the device or the runs directory cannot be had.
    """

    def __init__(self, config: RunConfig, base_dir: Path | None = None) -> None:
        self.config = config
        self.base_dir = base_dir or Path.cwd()
        self.runs_dir = (self.base_dir / config.sections.runs_dir).resolve()
        self.store = Store(self.runs_dir)
        self.hardware: Hardware = resolve_hardware(config.sections.hardware)
        self.aliases = Aliases(config.sections, self.runs_dir)
        self._finished: dict[str, ModelRef] = {}  # found once: `latest` must not come to mean the run under way

    @cached_property
    def base(self) -> ModelRef:
        """The base model, its revision resolved and its files hashed."""
        return resolve_model(self.aliases.base_config, self.hardware.dtype)

    @cached_property
    def original(self) -> ModelRef | None:
        """What a registered base model was once trained from; None where the base is no such model, or that is gone."""
        return self.aliases.original(self.hardware.dtype)

    def inputs(self, name: str, results: Mapping[str, StageResult]) -> StepInputs:
        """What a step is given, once the steps it needs are done."""
        step = self.config.steps[name]
        rewards = self.config.rewards[step.reward] if step.reward else {}
        suites = self.suites(step)
        values: dict[str, Any] = {
            "models": self._models(name, results),
            "data_id": self._data_id(step, results),
            "rewards": rewards,
            "suite_ids": {suite: self._suite_id(suite, settings) for suite, settings in suites.items()},
        }
        return StepInputs(
            name=name,
            step=step,
            settings=self.config.settings[name],
            data=self._step_data(step, results),
            suites=suites,
            parts=step_parts(self.config, name, self.hardware, self.base_dir, **values),
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
        results[name] = replace(result, model=self._ours(result.model))
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

    def prepared(self, source: str) -> dict[str, Path]:
        """The prepared rows of a data source, made when they are not there yet.

        Raises:
            UserError: The source cannot be read or used; names file, row and column.
        """
        folder = self.store.root / f"data-{digest(self._source_id(source))}"
        return prepare_once(self.config.data[source], self._held_out(source), folder, self.base_dir)

    def sources(self) -> list[str]:
        """The data sources the pipeline reads, each once."""
        steps = self.config.steps.values()
        own = [step.data for step in steps if isinstance(step.data, str)]
        scored = [suite.data for step in steps for suite in self.suites(step).values() if suite.data]
        return list(dict.fromkeys([*own, *scored]))

    def check(self) -> None:
        """Try everything that can go wrong before a model is loaded (see `flows.door`).

        Raises:
            UserError: The first thing that is wrong.
        """
        check_workspace(self)

    def find_models(self) -> list[ModelRef]:
        """The base and the models of finished runs that steps start from or compare with.

        Raises:
            UserError: There is no such model, or it has another base.
        """
        models = {BASE: self.base}
        for name, step in self.config.steps.items():
            for edge in step.model_edges:
                if edge not in self.config.steps and edge not in models:
                    try:
                        models[edge] = self._model(edge, {})
                    except UserError as error:
                        raise UserError(f"pipeline.{name}: {error}") from error
            self._check_start(name, models)
        return list(models.values())

    def named(self, edge: str) -> ModelRef:
        """What `base`, or an alias of the registry, means.

        Raises:
            UserError: There is no such model, or MLflow cannot be asked.
        """
        return self._model(edge, {})

    def notices(self) -> list[str]:
        """What a person should know before the run: what aliases mean, and what of the rewards it uses."""
        steps = self.config.steps.values()
        used = [step.reward for step in steps if step.reward]
        for suite in (suite for step in steps for suite in self.suites(step).values()):
            used += [name for name in (suite.reward, suite.information) if name]
        of_rewards = [line for name in dict.fromkeys(used) for line in notices(self.config.rewards[name])]
        return [*(f"{name}: {meaning}" for name, meaning in self.aliases.asked.items()), *of_rewards]

    def stage_suites(self, inputs: StepInputs) -> dict[str, Suite]:
        """The step's suites as its stage sees them."""
        return self.as_suites(inputs.suites)

    def as_suites(self, suites: Mapping[str, SuiteConfig]) -> dict[str, Suite]:
        """Suites with their rows and rewards."""
        return {
            name: Suite(
                id=digest(self._scored_by(name, suite)),
                role=suite.role,
                rows=self.suite_rows(name, suite),
                rewards=self.config.rewards[suite.reward] if suite.reward else {},
                max_rows=suite.max_rows,
                max_new_tokens=suite.max_new_tokens,
                tolerance=suite.tolerance,
                information=self.config.rewards[suite.information] if suite.information else {},
                samples=suite.samples,
                temperature=suite.temperature,
                judge=suite.judge,
                lm_eval=suite.lm_eval,
            )
            for name, suite in suites.items()
        }

    def suite_rows(self, name: str, suite: SuiteConfig) -> Path:
        """The prepared rows of a suite.

        Raises:
            UserError: Its data source, or its tasks, cannot be read or used.
        """
        if suite.lm_eval is None:
            return self.prepared(str(suite.data))[suite.split.name]
        folder = self.store.root / f"data-{digest(self._suite_source(name, suite))}"
        return prepare_tasks(name, suite.lm_eval, folder, self.base_dir)

    def stage_data(self, inputs: StepInputs) -> Mapping[str, Path]:
        """The step's files of prepared rows."""
        return self.prepared(inputs.data) if isinstance(inputs.data, str) else inputs.data or {}

    def suite_names(self, step: Step) -> list[str]:
        """The suites a step scores: those it names, else all configured ones; none for stages that take no suites."""
        takes_suites = "suites" in STAGES[step.stage].needs
        return (step.suites or list(self.config.suites)) if takes_suites else []

    def suites(self, step: Step) -> dict[str, SuiteConfig]:
        """The suites a step scores."""
        return {name: self.config.suites[name] for name in self.suite_names(step)}

    def _models(self, name: str, results: Mapping[str, StageResult]) -> dict[str, ModelRef]:
        step = self.config.steps[name]
        models = {"start": self._model(step.start, results)}
        for label, edge in (("baseline", step.baseline), ("anchor", step.anchor)):
            if edge:
                models[label] = self._compared(edge, models["start"], results)
        chain = self._ancestors(name)
        if chain:
            first = self.config.steps[chain[0]].start
            models[f"chain.{first}"] = self._model(first, results)
        for other in chain:
            models[f"chain.{other}"] = results[other].model
        for other in step.models:
            models[f"models.{other}"] = self._model(other, results)
        if "suites" in STAGES[step.stage].needs and self.original is not None:
            models["original"] = self.original
        return models

    def _model(self, edge: str, results: Mapping[str, StageResult]) -> ModelRef:
        if edge == BASE:
            return self.base
        if edge.startswith("run/"):
            if edge not in self._finished:
                self._finished[edge] = self._find(edge.removeprefix("run/"))
            return self._finished[edge]
        return self._registered(edge, results) if edge in ALIASES else results[edge].model

    def _registered(self, alias: str, results: Mapping[str, StageResult]) -> ModelRef:
        """What an alias points to, or what stands in for it."""
        version = self.aliases.version(alias)
        if version is None:
            return self._model(self.config.sections.registry.fallback, results)
        return self.aliases.model(version, self.base)

    def _compared(self, edge: str, start: ModelRef, results: Mapping[str, StageResult]) -> ModelRef:
        """What a step compares its start with: not the start itself, where that has shipped, but what was there before.

        So the same command finds the same gate again, and not a candidate that is no better than itself.
        """
        model = self._model(edge, results)
        version = self.aliases.version(edge) if edge in ALIASES else None
        if version is None or model.identity != start.identity:
            return model
        earlier = self.aliases.before(edge, version)
        stand_in = self.config.sections.registry.fallback
        return self.aliases.model(earlier, self.base) if earlier else self._model(stand_in, results)

    def _check_start(self, name: str, models: Mapping[str, ModelRef]) -> None:
        """An adapter is trained on the run's own base: a registered model that has another cannot be a start."""
        edge = self.config.steps[name].start
        if edge in ALIASES and models[edge].sha256 != self.base.sha256:
            raise UserError(
                f"pipeline.{name}: {self.aliases.version(edge)} ({edge}) has another base than {self.base.config.id}, "
                f"or its adapters are not in {self.store.root}; start from base with "
                f"model.id=models:/{self.config.sections.registry.name}@{edge} (model=champion), which is its weights"
            )

    def _find(self, text: str) -> ModelRef:
        model = find_run(self.runs_dir, text).model()
        if model.sha256 != self.base.sha256:
            raise UserError(
                f"run/{text}: was trained from {model.config.id}, not from {self.base.config.id}; "
                "set model to the one it was trained from, or start from a run of this one"
            )
        return self._ours(model)

    def _ours(self, model: ModelRef) -> ModelRef:
        """A model out of the store, with this run's model section: it may have been made under another path."""
        return replace(model, config=self.base.config, revision=self.base.revision)

    def _ancestors(self, name: str) -> list[str]:
        """The steps on the way from the base to where a step starts, the earliest first."""
        start = self.config.steps[name].start
        return [*self._ancestors(start), start] if start in self.config.steps else []

    def _step_data(self, step: Step, results: Mapping[str, StageResult]) -> str | Mapping[str, Path] | None:
        if step.data_step is None:
            return None if step.data is None else str(step.data)
        return {split: path for split, path in results[step.data_step].artifacts.items() if split in _SPLITS}

    def _data_id(self, step: Step, results: Mapping[str, StageResult]) -> Any:
        if step.data is None:
            return None
        if step.data_step is None:
            return self._source_id(step.data)
        files = self._step_data(step, results)
        if not isinstance(files, Mapping) or "train" not in files:
            raise ConfigError(f"pipeline: step {step.data_step!r} left no rows to take")
        return {split: file_sha256(path) for split, path in files.items()}

    def _source_id(self, source: str) -> dict[str, Any]:
        identity = data_identity(self.config.data[source], self.base_dir)
        return {"source": identity, "held_out": self._held_out(source)}

    def _held_out(self, source: str) -> float:
        """The share of a source's prompts that is held out: its own, else the run's."""
        own = self.config.data[source].held_out
        return self.config.sections.held_out if own is None else own

    def _suite_id(self, name: str, suite: SuiteConfig) -> dict[str, Any]:
        """What of a suite counts: not what its data source and its reward set are called."""
        settings = {key: value for key, value in outcome_fields(suite).items() if key not in _NAMES}
        return {**settings, "rows": self._suite_source(name, suite), **self._suite_rewards(suite)}

    def _suite_source(self, name: str, suite: SuiteConfig) -> dict[str, Any]:
        """What determines the rows of a suite; with lm-eval's tasks, also how they are scored."""
        if suite.lm_eval is None:
            return self._source_id(str(suite.data))
        return harness_identity(name, suite.lm_eval, self.base_dir)

    def _suite_rewards(self, suite: SuiteConfig) -> dict[str, Any]:
        names = {"score": suite.reward, "information": suite.information}
        return {use: reward_parts(self.config.rewards[name], self.base_dir) for use, name in names.items() if name}

    def _scored_by(self, name: str, suite: SuiteConfig) -> dict[str, Any]:
        """All but the model, seed, batches and hardware that determines the scores of replies to a suite."""
        return {
            "rows": file_sha256(self.suite_rows(name, suite)),
            "source": self._suite_source(name, suite) if suite.lm_eval else None,
            "max_rows": suite.max_rows,
            "max_new_tokens": suite.max_new_tokens,
            "samples": suite.samples,
            "temperature": suite.temperature if suite.samples > 1 else None,
            **self._suite_rewards(suite),
            "code": code_digest("stages.harness_scores" if suite.lm_eval else "stages.suite_scores"),
            "libraries": library_versions(),
        }


_NAMES = ("data", "reward", "information", "lm_eval")
"""Of a suite: names of what counts itself, and what counts with the files it names."""

_SPLITS = ("train", "select", "gate")
