"""Prefect's task runners for what runs side by side, by the configuration's name for them."""

from typing import Any

from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner

from conf.sweep import OrchestrationConfig, Runner
from flows.cell import prepare_worker
from stages import gpus
from stages.contract import Hardware
from stages.hardware import cores


def make_runner(config: OrchestrationConfig, workers: int) -> TaskRunner[Any]:
    """A runner, to be entered, of so many workers."""
    assert config.runner is Runner.processes
    return ProcessPoolTaskRunner(max_workers=workers, initializer=prepare_worker)


def workers(config: OrchestrationConfig, hardware: Hardware) -> int:
    """How many cells may run at once: more than the devices allow would only wait."""
    if config.max_workers is not None:
        return config.max_workers
    if hardware.device == "cuda":
        return max(1, len(gpus.visible()))
    return max(1, len(cores()) // hardware.threads)
