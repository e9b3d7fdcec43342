"""What Prefect's server has of a run whose tasks have ended: it learns of tasks by events, a moment after the run."""

from typing import Any

from tests.flows.test_together import eventually


def prefect_states(record: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Prefect's names for the states of a run and of the steps that were not skipped, once all of them are final."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.objects import TaskRun

    begun = sum(step["state"] != "skipped" for step in record["steps"].values())
    of_run = FlowRunFilter(id={"any_": [record["prefect_run"]]})
    tasks: list[TaskRun] = []
    with get_client(sync_client=True) as client:

        def all_final() -> bool:
            tasks[:] = client.read_task_runs(flow_run_filter=of_run)
            return len(tasks) >= begun and all(task.state and task.state.is_final() for task in tasks)

        eventually(all_final)
        return client.read_flow_run(record["prefect_run"]).state.name, {task.name: task.state.name for task in tasks}
