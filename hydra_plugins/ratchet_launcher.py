"""Hydra's launcher `ratchet`, the default for `-m`: hands the jobs of a sweeper, composed, to `flows.sweeps.sweeper`.

Hydra finds it by its place, and imports it whenever it starts: so nothing heavy is imported here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, flag_override


@dataclass
class RatchetLauncherConf:
    """The launcher's section, `hydra.launcher`; the settings of a sweep are in `sweep` and `orchestration`."""

    _target_: str = "hydra_plugins.ratchet_launcher.RatchetLauncher"


ConfigStore.instance().store(group="hydra/launcher", name="ratchet", node=RatchetLauncherConf, provider="ratchet")


class RatchetLauncher(Launcher):
    """Runs the jobs of one launch together; their task function is a `flows.sweeps.sweeper.Jobs`."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take down what a launch needs.

        Raises:
            HydraException: An optimiser is told that less is better.
        """
        self._context, self._task_function, self._config = hydra_context, task_function, config
        direction = OmegaConf.select(config, "hydra.sweeper.direction", default="maximize")  # not all have one
        if getattr(direction, "name", direction) != "maximize":
            raise HydraException(
                "hydra.sweeper.direction: a cell returns its mean task score, of which more is better; leave it out, "
                "or say maximize"
            )

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run jobs; each returns its mean task score on the `select` split, or None when it has none."""
        Path(self._config.hydra.sweep.dir).mkdir(parents=True, exist_ok=True)  # where sweepers leave what they found
        jobs = [(self._composed(list(overrides)), list(overrides)) for overrides in job_overrides]
        launch: Any = self._task_function
        return [
            JobReturn(overrides=overrides, cfg=config, status=JobStatus.COMPLETED, _return_value=value)
            for (config, overrides), value in zip(jobs, launch.launch(jobs), strict=True)
        ]

    def _composed(self, overrides: list[str]) -> DictConfig:
        """The configuration of a job, without Hydra's own."""
        config = self._context.config_loader.load_sweep_config(self._config, overrides)
        with flag_override(config, ["struct", "readonly"], [False, False]):
            del config["hydra"]
        return config
