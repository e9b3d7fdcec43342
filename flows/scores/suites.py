"""The rows and suites of a configuration: prepared on this machine, and known by what determines them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conf.run import RunConfig
from conf.schema import SuiteConfig
from conf.steps import Step
from flows.fingerprint import code_digest, digest, library_versions, outcome_fields, reward_parts
from stages.cache import file_sha256
from stages.contract import Suite
from stages.data import data_identity, prepare_once
from stages.harness import harness_identity, prepare_tasks


class PreparedRows:
    """Data sources as files of prepared rows.

    Args:
        config: The run's configuration.
        store: Where prepared rows are kept.
        base_dir: What relative paths start from.
    """

    def __init__(self, config: RunConfig, store: Path, base_dir: Path) -> None:
        self._config, self._store, self._base_dir = config, store, base_dir

    def prepared(self, source: str) -> dict[str, Path]:
        """The prepared rows of a data source, made when they are not there yet.

        Raises:
            UserError: The source cannot be read or used; names file, row and column.
        """
        return prepare_once(self._config.data[source], self._held_out(source), self.folder(source), self._base_dir)

    def folder(self, source: str) -> Path:
        """Where the prepared rows of a data source are, or will be."""
        return self._store / f"data-{digest(self.source_id(source))}"

    def source_id(self, source: str) -> dict[str, Any]:
        """What determines the rows of a data source."""
        identity = data_identity(self._config.data[source], self._base_dir)
        return {"source": identity, "held_out": self._held_out(source)}

    def _held_out(self, source: str) -> float:
        """The share of a source's prompts that is held out: its own, else the run's."""
        own = self._config.data[source].held_out
        return self._config.sections.held_out if own is None else own


class Suites(PreparedRows):
    """Suites with their rows; their scores are kept under what determines them."""

    def of(self, step: Step) -> dict[str, SuiteConfig]:
        """The suites a step scores."""
        return {name: self._config.suites[name] for name in self._config.suite_names(step)}

    def sources(self) -> list[str]:
        """The data sources the pipeline reads, each once."""
        steps = self._config.steps.values()
        own = [step.data for step in steps if isinstance(step.data, str)]
        scored = [suite.data for step in steps for suite in self.of(step).values() if suite.data]
        return list(dict.fromkeys([*own, *scored]))

    def as_stage(self, suites: Mapping[str, SuiteConfig]) -> dict[str, Suite]:
        """Suites with their rows and rewards."""
        return {
            name: Suite(
                id=digest(self._scored_by(name, suite)),
                role=suite.role,
                rows=self.rows(name, suite),
                rewards=self._config.rewards[suite.reward] if suite.reward else {},
                max_rows=suite.max_rows,
                max_new_tokens=suite.max_new_tokens,
                tolerance=suite.tolerance,
                information=self._config.rewards[suite.information] if suite.information else {},
                samples=suite.samples,
                temperature=suite.temperature,
                judge=suite.judge,
                lm_eval=suite.lm_eval,
            )
            for name, suite in suites.items()
        }

    def rows(self, name: str, suite: SuiteConfig) -> Path:
        """The prepared rows of a suite.

        Raises:
            UserError: Its data source, or its tasks, cannot be read or used.
        """
        if suite.lm_eval is None:
            return self.prepared(str(suite.data))[suite.split.name]
        folder = self._store / f"data-{digest(self._suite_source(name, suite))}"
        return prepare_tasks(name, suite.lm_eval, folder, self._base_dir)

    def identity(self, name: str, suite: SuiteConfig) -> dict[str, Any]:
        """What of a suite counts for a step: not what its data source and its reward set are called."""
        settings = {key: value for key, value in outcome_fields(suite).items() if key not in _NAMES}
        return {**settings, "rows": self._suite_source(name, suite), **self._suite_rewards(suite)}

    def _suite_source(self, name: str, suite: SuiteConfig) -> dict[str, Any]:
        """What determines the rows of a suite; with lm-eval's tasks, also how they are scored."""
        if suite.lm_eval is None:
            return self.source_id(str(suite.data))
        return harness_identity(name, suite.lm_eval, self._base_dir)

    def _suite_rewards(self, suite: SuiteConfig) -> dict[str, Any]:
        names = {"score": suite.reward, "information": suite.information}
        return {use: reward_parts(self._config.rewards[name], self._base_dir) for use, name in names.items() if name}

    def _scored_by(self, name: str, suite: SuiteConfig) -> dict[str, Any]:
        """All but the model, seed, batches and hardware that determines the scores of replies to a suite."""
        return {
            "rows": file_sha256(self.rows(name, suite)),
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
