"""Steps as Prefect tasks. No cache policy and no result persistence: the store is the cache."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State
from prefect.states import Cancelled, Completed

from flows.execute import PipelineRun, execute
from flows.stop import CANCEL
from flows.workspace import StepInputs
from stages.contract import Interrupted, StageResult


@task(cache_policy=NO_CACHE, persist_result=False)
def run_step(run: PipelineRun, inputs: StepInputs) -> "State[StageResult] | StageResult":
    """Do one step; its final state is called Cached when the store already had the result."""
    try:
        result, cached = execute(run, inputs)
    except Interrupted as error:
        if run.stop.reason != CANCEL:
            raise
        return Cancelled(message=str(error))
    return Completed(name="Cached", data=result) if cached else result
