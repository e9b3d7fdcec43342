"""The models that the edges of a pipeline name: the base, steps, finished runs, aliases of the registry."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from conf.errors import UserError
from conf.run import RunConfig
from conf.steps import ALIASES, BASE, RUN, STAGES, named_edge
from flows.references import find_run
from flows.registry.aliases import Aliases
from stages.contract import ModelRef, StageResult
from stages.identity import resolve_model


class Models:
    """What edges mean. Runs and aliases are found once: `latest` must not come to mean the run under way.

    Args:
        config: The run's configuration.
        runs_dir: Where runs live.
        dtype: Number type of the weights.
    """

    def __init__(self, config: RunConfig, runs_dir: Path, dtype: str) -> None:
        self._config, self._runs_dir, self._dtype = config, runs_dir, dtype
        self.aliases = Aliases(config.sections, runs_dir)
        self._finished: dict[str, ModelRef] = {}

    @cached_property
    def base(self) -> ModelRef:
        """The base model, its revision resolved and its files hashed."""
        return resolve_model(self.aliases.base_config, self._dtype)

    @cached_property
    def original(self) -> ModelRef | None:
        """What a registered base model was once trained from; None where the base is no such model, or that is gone."""
        return self.aliases.original(self._dtype)

    def find(self) -> list[ModelRef]:
        """The base and the models of finished runs that steps start from or compare with.

        Raises:
            UserError: There is no such model, or it has another base.
        """
        models = {BASE: self.base}
        for name, step in self._config.steps.items():
            for edge in step.model_edges:
                if edge not in self._config.steps and edge not in models:
                    try:
                        models[edge] = self.model(edge, {})
                    except UserError as error:
                        raise type(error)(f"pipeline.{name}: {error}") from error  # an outage stays one
            self._check_start(name, models)
        return list(models.values())

    def of_step(self, name: str, results: Mapping[str, StageResult]) -> dict[str, ModelRef]:
        """The models a step is given, under the names that `stages.contract.StageContext` has for them."""
        step = self._config.steps[name]
        models = {"start": self.model(step.start, results)}
        for label, edge in (("baseline", step.baseline), ("anchor", step.anchor)):
            if edge:
                models[label] = self._compared(edge, models["start"], results)
        chain = self._ancestors(name)
        if chain:
            first = self._config.steps[chain[0]].start
            models[f"chain.{named_edge(first)[0]}"] = self.model(first, results)
        for other in chain:
            models[f"chain.{other}"] = results[other].model
        for other in step.models:
            models[f"models.{named_edge(other)[0]}"] = self.model(other, results)
        if "suites" in STAGES[step.stage].needs and self.original is not None:
            models["original"] = self.original
        return models

    def model(self, edge: str, results: Mapping[str, StageResult]) -> ModelRef:
        """What an edge names; of aliases and runs also before any step is done.

        Raises:
            UserError: There is no such model, it has another base, or MLflow cannot be asked.
        """
        what = named_edge(edge)[1]
        if what == BASE:
            return self.base
        if what.startswith(RUN):
            if what not in self._finished:
                self._finished[what] = self._find(what.removeprefix(RUN))
            return self._finished[what]
        return self._registered(what, results) if what in ALIASES else results[what].model

    def _registered(self, alias: str, results: Mapping[str, StageResult]) -> ModelRef:
        """What an alias points to, or what stands in for it."""
        version = self.aliases.version(alias)
        if version is None:
            return self.model(self._config.sections.registry.fallback, results)
        return self.aliases.model(version, self.base)

    def _compared(self, edge: str, start: ModelRef, results: Mapping[str, StageResult]) -> ModelRef:
        """What a step compares its start with: not the start itself, where that has shipped, but what was there before.

        So the same command finds the same gate again, and not a candidate that is no better than itself.
        """
        model = self.model(edge, results)
        version = self.aliases.version(edge) if edge in ALIASES else None
        if version is None or model.identity != start.identity:
            return model
        earlier = self.aliases.before(edge, version)
        stand_in = self._config.sections.registry.fallback
        return self.aliases.model(earlier, self.base) if earlier else self.model(stand_in, results)

    def _check_start(self, name: str, models: Mapping[str, ModelRef]) -> None:
        """An adapter is trained on the run's own base: a registered model that has another cannot be a start."""
        edge = self._config.steps[name].start
        if edge in ALIASES and models[edge].sha256 != self.base.sha256:
            raise UserError(
                f"pipeline.{name}: {self.aliases.version(edge)} ({edge}) has another base than {self.base.config.id}, "
                f"or its adapters are not in {self._runs_dir}; start from base with "
                f"model.id=models:/{self._config.sections.registry.name}@{edge} (model=champion), which is its weights"
            )

    def _find(self, text: str) -> ModelRef:
        model = find_run(self._runs_dir, text).model()
        if model.sha256 != self.base.sha256:
            raise UserError(
                f"run/{text}: was trained from {model.config.id}, not from {self.base.config.id}; "
                "set model to the one it was trained from, or start from a run of this one"
            )
        return self.ours(model)

    def ours(self, model: ModelRef) -> ModelRef:
        """A model out of the store, with this run's model section: it may have been made under another path."""
        return replace(model, config=self.base.config, revision=self.base.revision)

    def _ancestors(self, name: str) -> list[str]:
        """The steps on the way from the base to where a step starts, the earliest first."""
        start = self._config.steps[name].start
        return [*self._ancestors(start), start] if start in self._config.steps else []
