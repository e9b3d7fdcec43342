"""Steps as Prefect tasks. No cache policy and no result persistence: the store is the cache."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State
from prefect.states import Completed

from flows.execute import PipelineRun, execute
from flows.workspace import StepInputs
from stages.contract import StageResult


@task(cache_policy=NO_CACHE, persist_result=False)
def run_step(run: PipelineRun, inputs: StepInputs) -> "State[StageResult] | StageResult":
    """Do one step; its final state is called Cached when the store already had the result."""
    result, cached = execute(run, inputs)
    return Completed(name="Cached", data=result) if cached else result
