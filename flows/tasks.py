"""Steps as Prefect tasks. No cache policy and no result persistence: the store is the cache."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State
from prefect.states import Cancelled, Completed

from flows.execute import PipelineRun, execute
from flows.outcome import VERDICTS
from flows.registry.shipping import ship
from flows.stop import CANCEL
from flows.workspace import StepInputs
from stages.contract import Interrupted, StageResult


@task(cache_policy=NO_CACHE, persist_result=False)
def run_step(run: PipelineRun, inputs: StepInputs) -> "State[StageResult] | StageResult":
    """Do one step; its state is called Cached when the store had the result, else by what a gate decided."""
    try:
        result, cached = execute(run, inputs)
        result = ship(run, inputs, result)
    except Interrupted as error:
        if run.stop.reason != CANCEL:
            raise
        return Cancelled(message=str(error))
    name = "Cached" if cached else VERDICTS.get(str(result.verdict))
    return Completed(name=name, data=result) if name else result
