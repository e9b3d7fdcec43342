"""Models that a person names, scored on suites: what `ratchet evaluate` and `ratchet compare` share.

All models get the same prompts, chat settings, limits and rewards, those of one configuration: that of the first run
that has one, with the suites of conf/suite that are asked for. Nothing here needs Prefect.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.errors import UserError
from conf.measuring import ScoringConfig
from conf.schema import ModelConfig
from conf.steps import ALIASES, BASE
from flows.console import Console
from flows.leases import command_holder, say_for_whom
from flows.references import FoundRun, find_run
from flows.registry.aliases import Aliases
from flows.scores.known_or_made import known_or_made
from flows.scores.scoring_config import STEP, default_values, is_reference, is_run, record_of, scoring_config
from flows.workspace import Workspace
from stages.contract import ModelRef, StageContext
from stages.identity import resolve_model

if TYPE_CHECKING:
    from stages.score_intervals import MeanScore

Scores = Mapping[tuple[str, str], "MeanScore"]
"""By suite and name of the model."""


@dataclass(frozen=True, kw_only=True)
class NamedModel:
    """A model and what it was called; and the run that left it, if a run did."""

    name: str
    model: ModelRef
    run: FoundRun | None = None


class ModelScores:
    """Models and suites in the surroundings of one configuration.

    Args:
        arguments: Of the command: `run` (one or several), `suite`, `config_dir`, `runs_dir`.

    Raises:
        UserError: A run, a model, a suite, or what a suite needs, cannot be found or used.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        runs_dir = Path(arguments.runs_dir).resolve()
        texts = [arguments.run] if isinstance(arguments.run, str) else arguments.run
        record = next(filter(None, (record_of(runs_dir, text) for text in texts)), None)
        values = record["config"] if record else default_values(texts[0], runs_dir, arguments.config_dir)
        self.whose = record["id"] if record else None
        values = {**values, "runs_dir": str(runs_dir)}
        self._workspace = Workspace(scoring_config(values, arguments.suite, arguments.config_dir, texts[0]))
        self._started_in = record["directory"] if record else None
        self._console = Console()

    @property
    def runs_dir(self) -> Path:
        """Where runs live."""
        return self._workspace.runs_dir

    @property
    def suites(self) -> list[str]:
        """The suites that are scored."""
        return self._workspace.config.steps[STEP].suites

    def find(self, text: str) -> NamedModel:
        """A model by what a person calls it.

        Raises:
            UserError: There is none, or it cannot be used.
        """
        if text == BASE or text in ALIASES:
            model = self._workspace.models.model(text, {})
            for alias, meaning in self._workspace.models.aliases.asked.items():
                self._console.say(f"{alias}: {meaning}")
            return NamedModel(name=text, model=model)
        if is_run(self.runs_dir, text) or not is_reference(text):
            run = find_run(self.runs_dir, text)
            name = run.record["id"] if run.record and "/" not in text else run.name
            return NamedModel(name=name, model=self._in_our_chat(run.model()), run=run)
        return NamedModel(name=text, model=self._referenced(text))

    def start_of(self, named: NamedModel, text: str) -> NamedModel:
        """What a run's step started from; for a whole pipeline run, what its first step started from."""
        run = named.run
        if run is None:
            return named
        entries = {run.entry.id}
        if run.record and "/" not in text:
            entries = {step["store"] for step in run.record["steps"].values()}
        adapters = list(named.model.adapters)
        while adapters and adapters[-1].path.parent.name in entries:
            adapters.pop()
        name = f"start of {named.name}" if adapters else BASE
        return NamedModel(name=name, model=replace(named.model, adapters=tuple(adapters)))

    def score(self, models: Sequence[NamedModel], baseline: ModelRef | None = None) -> Scores:
        """Score models on the suites; what is known is not computed again.

        Args:
            models: The models.
            baseline: What judges compare with; the base model when absent.

        Raises:
            UserError: What the suites need cannot be had, or `runs_dir` may not be written.
        """
        from stages.score_intervals import mean_score

        self._check()
        named = {each.name: each.model for each in models}
        baseline = baseline or self._workspace.models.base
        if all(model.identity != baseline.identity for model in named.values()) and self._judges():
            named = {"baseline": baseline, **named}
        self._console.say(f"{', '.join(self.suites)}{f', as {self.whose} has them' if self.whose else ''}:")
        with tempfile.TemporaryDirectory() as folder:
            context = self._context(Path(folder), {"start": models[0].model, "baseline": baseline})
            on_wait = say_for_whom(lambda line: self._console.say(f"  {line}"))
            scored = known_or_made(named, self._settings, context, command_holder("an evaluation"), on_wait)
        return {
            (suite, each.name): mean_score([row for row in scored.rows if (row.suite, row.model) == (suite, each.name)])
            for suite in self.suites
            for each in models
        }

    def _check(self) -> None:
        """Try all that can go wrong before a model is loaded; what is only read needs no room and no data."""
        try:
            self._workspace.check()
        except UserError as error:
            if self._started_in not in (None, str(Path.cwd())):
                raise UserError(f"{error} ({self.whose} was started in {self._started_in}; try there)") from error
            raise

    def known(self, models: Sequence[NamedModel]) -> Scores:
        """Those scores that need no computation; none of a judge's."""
        from stages.score_intervals import mean_score
        from stages.scores import NotKnown, score_models

        found = {}
        with tempfile.TemporaryDirectory() as folder:
            context = self._context(Path(folder), {"start": models[0].model})
            for name in (name for name in self.suites if name not in self._judges()):
                alone = replace(context, suites={name: context.suites[name]}, say=lambda _: None)
                for each in models:
                    try:
                        scored = score_models({each.name: each.model}, self._settings, alone, known_only=True)
                    except NotKnown:
                        continue
                    found[name, each.name] = mean_score(scored.rows)
        return found

    @property
    def _seed(self) -> int:
        return self._workspace.config.sections.seed

    @property
    def _settings(self) -> ScoringConfig:
        settings: ScoringConfig = self._workspace.config.settings[STEP]
        return settings

    def _judges(self) -> list[str]:
        suites = self._workspace.config.suites
        return [name for name in self.suites if suites[name].judge]

    def _context(self, folder: Path, models: Mapping[str, ModelRef]) -> StageContext:
        workspace = self._workspace
        return StageContext(
            models=models,
            out_dir=folder,
            seed=self._seed,
            hardware=workspace.hardware,
            suites=workspace.suites.as_stage(workspace.suites.of(workspace.config.steps[STEP])),
            scores=workspace.store.scores,
            progress=lambda what, done, total: self._console.progress("", what, done, total),
            say=lambda text: self._console.say(f"  {text}"),
        )

    def _in_our_chat(self, model: ModelRef) -> ModelRef:
        """A model with this configuration's chat settings."""
        ours = self._workspace.models.base
        if model.sha256 == ours.sha256:
            return replace(model, config=ours.config, revision=ours.revision)
        return replace(model, config=replace(model.config, **_chat(ours.config)))

    def _referenced(self, text: str) -> ModelRef:
        """A base model by its id."""
        workspace = self._workspace
        sections = workspace.config.sections
        if text == sections.model.id:
            return workspace.models.base
        config = ModelConfig(id=text, **_chat(workspace.models.base.config))
        aliases = Aliases(replace(sections, model=config), workspace.runs_dir)
        return resolve_model(aliases.base_config, workspace.hardware.dtype)


def _chat(config: ModelConfig) -> dict[str, Any]:
    names = ("chat_template", "chat_template_kwargs", "stop_tokens")
    return {name: getattr(config, name) for name in names}
