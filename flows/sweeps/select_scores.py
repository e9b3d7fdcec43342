"""The score by which cells of a sweep are compared: their final model on the `select` split of the pipeline's suites.

The `gate` split stays untouched for the one that wins. Scores are kept with all others: a cell that is run again, or
that comes to the same model, has them at once.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conf.loader import dump
from conf.run import RunConfig
from conf.schema import Split
from conf.steps import STAGES
from flows.console import Console
from flows.leases import say_for_whom
from flows.scores.known_or_made import known_or_made
from flows.scores.scoring_config import STEP, own_suites, scoring_config
from flows.stop import StopRequest
from flows.store import Entry
from flows.workspace import Workspace
from stages.contract import ModelRef, StageContext

MODEL = "cell"


def candidate_step(config: RunConfig) -> str | None:
    """The step whose model a cell is judged by, if there is one.

    What its last gate decides about, else what its last evaluation is about, else the last that trains.
    """
    for stage in ("gate", "evaluate"):
        starts = [step.start for step in config.steps.values() if step.stage == stage and step.start in config.steps]
        if starts:
            return starts[-1]
    return next((name for name in reversed(list(config.steps)) if STAGES[config.steps[name].stage].trains), None)


def select_config(config: RunConfig) -> RunConfig | None:
    """A configuration whose only step scores the pipeline's suites on the `select` split; None without such suites.

    Tasks of lm-evaluation-harness have no such split, and are left to the gate.
    """
    values = dump(config.sections)
    names = [name for name in own_suites(values) if config.suites[name].lm_eval is None]
    if not names:
        return None
    suites = {name: {**values["suite"][name], "split": Split.select.name} for name in names}
    return scoring_config({**values, "suite": {**values["suite"], **suites}}, names, None, config.sections.name)


def score_cell(config: RunConfig, model: ModelRef, stop: StopRequest, console: Console, holder: str) -> dict[str, Any]:
    """The scores of a cell's model by suite, as plain JSON, each with the `id` of its rows and of how they are scored.

    There are none without suites.

    Raises:
        Interrupted: The sweep was asked to end.
    """
    from stages.score_intervals import mean_score

    chosen = select_config(config)
    if chosen is None:
        return {}
    workspace = Workspace(chosen)
    suites = workspace.suites.of(chosen.steps[STEP])
    models = {MODEL: workspace.models.ours(model)}
    if any(suite.judge for suite in suites.values()):
        models = {"baseline": workspace.models.base, **models}
    stage_suites = workspace.suites.as_stage(suites)
    with tempfile.TemporaryDirectory() as folder:
        context = StageContext(
            models={"start": models[MODEL], "baseline": workspace.models.base},
            out_dir=Path(folder),
            seed=chosen.sections.seed,
            hardware=workspace.hardware,
            suites=stage_suites,
            scores=workspace.store.scores,
            progress=_progress(stop, console),
            say=lambda text: console.say(f"  select  {text}"),
            stopping=stop.requested,
        )
        scored = known_or_made(models, chosen.settings[STEP], context, holder, _waiting(stop, console))
    found = {}
    for name, suite in suites.items():
        score = mean_score([row for row in scored.rows if (row.suite, row.model) == (name, MODEL)])
        found[name] = {"role": suite.role.name, "id": stage_suites[name].id, **vars(score)}
    return found


def model_of(config: RunConfig, record: dict[str, Any], step: str) -> ModelRef | None:
    """The model that a step of a finished run left; None when it was skipped."""
    store = record["steps"][step]["store"]
    result = store and Entry(Workspace(config).store.root / store).result()
    return result.model if result else None


def _progress(stop: StopRequest, console: Console) -> Callable[[str, int, int], None]:
    def progress(what: str, done: int, total: int) -> None:
        console.progress("select", what, done, total)
        stop.check("select")

    return progress


def _waiting(stop: StopRequest, console: Console) -> Callable[[str], None]:
    tell = say_for_whom(lambda line: console.say(f"select: {line}"))

    def on_wait(holder: str) -> None:
        tell(holder)
        stop.check("select")

    return on_wait
