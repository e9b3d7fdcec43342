"""Who runs what runs side by side, as `orchestration` says: processes of this machine, or a Ray cluster."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner

from conf.run import RunConfig
from conf.sweep import Runner
from flows.sweeps.cell_process import prepare_worker
from flows.workspace import Workspace
from stages import gpus
from stages.contract import Hardware
from stages.hardware import cores


class Workers(Protocol):
    """Who runs the cells of a sweep."""

    @property
    def count(self) -> int:
        """How many cells may run at once: more than the devices allow would only wait."""

    @property
    def beside(self) -> int:
        """How many beside what this process does itself."""

    def make_runner(self, workers: int) -> TaskRunner[Any]:
        """A task runner of so many workers, to be entered."""

    def message(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        """A cell, and what else a worker must be told."""


@contextmanager
def workers_of(config: RunConfig) -> Iterator[Workers]:
    """The workers that a configuration asks for; to be used as long as it lasts.

    Raises:
        UserError: They cannot be had.
    """
    if config.sections.orchestration.runner is Runner.ray:
        from flows.workers.ray_cluster import ray_workers  # loads Ray

        with ray_workers(config) as workers:
            yield workers
    else:
        yield _Processes(config)


class _Processes:
    """Processes of this machine."""

    def __init__(self, config: RunConfig) -> None:
        self.count = config.sections.orchestration.max_workers or _as_devices_allow(Workspace(config).training_hardware)
        self.beside = self.count - 1

    def make_runner(self, workers: int) -> TaskRunner[Any]:
        return ProcessPoolTaskRunner(max_workers=workers, initializer=prepare_worker)

    def message(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        return dict(cell)


def _as_devices_allow(hardware: Hardware) -> int:
    if hardware.device == "cuda":
        return max(1, len(gpus.visible()) // hardware.num_processes)
    return max(1, len(cores()) // hardware.threads)
