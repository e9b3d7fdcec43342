"""Prefect's task runner for Ray, with what a cell takes of the cluster."""

from collections.abc import Mapping
from typing import Any

from prefect_ray import RayTaskRunner
from prefect_ray.context import remote_options


class CellRunner(RayTaskRunner[Any]):  # type: ignore[misc]
    """Runs every task with the same options of Ray's, on the cluster that this process is connected to.

    Args:
        options: As `ray.remote` takes them.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._options = options

    def duplicate(self) -> "CellRunner":
        """Another one like it."""
        return CellRunner(self._options)

    def submit(self, *arguments: Any, **named: Any) -> Any:
        """Send a task."""
        with remote_options(**self._options):
            return super().submit(*arguments, **named)
