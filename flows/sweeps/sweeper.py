"""`ratchet run -m`: a sweeper of Hydra's decides the cells, once or several times; one Prefect flow runs them all.

The sweeper calls us back with jobs and waits for their results, so it has a thread of its own, and the flow the main
one. The first jobs are composed and checked before Prefect is loaded: a mistake is found before anything runs.
"""

import json
import queue
import re
import threading
import traceback
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hydra import initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.types import RunMode

from conf.errors import UserError
from conf.sweep import Runner
from flows.commands.run import command_line
from flows.compose import key_of, parse, translate
from flows.hydra_errors import clear_errors
from flows.search_path import register
from flows.sweeps.cells import Cell, open_cell
from flows.workers.ray_cluster import check_ray
from stages.contract import Interrupted

Batch = list[tuple[Any, list[str]]]
"""Jobs of one launch: each composed, and its overrides."""

_OPTUNA = {"direction": "maximize", "max_failure_rate": 1.0}
"""What Optuna's sweeper is told where the user says nothing: more is better, and a failed cell ends nothing."""

NO_JOB = "-m: the sweeper made no job; give a setting several values, e.g. seed=1,2"

_PATIENCE_SECONDS = 10
"""For a sweeper to end; one that composes, or writes what it found, takes a moment."""


def sweep(overrides: Sequence[str], config_dir: str | None, as_json: bool = False) -> int:
    """Run every cell of a sweep, and show the leaderboard.

    Returns:
        The exit code: 0 when all is well, that of the gate when a winner went there (4 when there was none to go),
        otherwise that of the first cell that was not.

    Raises:
        UserError: A job of the first launch is wrong.
        Stopped: The sweep was asked to end.
    """
    register(config_dir)
    with Jobs(overrides) as jobs:
        batch = jobs.next()
        if batch is None:
            raise UserError(NO_JOB)
        cells = [open_cell(number, *job, jobs.fixed) for number, job in enumerate(batch, 1)]
        if jobs.optimises:
            _check_objective(cells)
        first = cells[0].config
        assert first is not None
        if first.sections.orchestration.runner is Runner.ray:
            check_ray(first)

        from flows.sweeps.flow import run_sweep
        from flows.sweeps.run import SweepRun
        from flows.workers.runners import workers_of

        with workers_of(first) as workers:
            run = SweepRun(cells, jobs, command_line("run", ["-m", *overrides], config_dir), config_dir, workers)
            values = run_sweep(run)
    print(json.dumps(values) if as_json else f"\n{run.text}")
    return run.code


class Jobs:
    """Between Hydra's sweeper and us: jobs come one way, the results go the other.

    As a context it runs the sweeper. It is the task function of the launcher `ratchet`, which hands over the jobs of a
    launch together; other launchers call it once for every job.

    Args:
        overrides: What was asked for on the command line.

    Raises:
        UserError: It sweeps over a key that decides nothing (see `_check_swept`).

    Attributes:
        given: The same, as Hydra takes it.
        fixed: The keys of those that are the same for all jobs.
        optimises: Whether the sweeper goes by the results, known once there are jobs.
    """

    def __init__(self, overrides: Sequence[str]) -> None:
        self.given = translate(overrides)
        parsed = parse(self.given, "-m: ")
        self.fixed = {key_of(each) for each in parsed if not each.is_sweep_override()}
        _check_swept(parsed)
        self.optimises = False
        self._launched = False
        self._batches: queue.Queue[Batch | BaseException | None] = queue.Queue()
        self._results: queue.Queue[list[float | None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._sweep, daemon=True)

    def __enter__(self) -> "Jobs":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._results.put(None)  # a sweeper that still waits has nothing to wait for
        self._thread.join(_PATIENCE_SECONDS)

    def __call__(self, composed: Any) -> float | None:
        """Run one job."""
        return self.launch([(composed, [str(item) for item in HydraConfig.get().overrides.task])])[0]

    def launch(self, jobs: Batch) -> list[float | None]:
        """Run jobs; returns the score of each, None where it has none. Called by the sweeper.

        Raises:
            UserError: There is none.
            Interrupted: The sweep has ended early.
        """
        if not jobs:
            raise UserError(NO_JOB)
        self._launched = True
        self._batches.put(jobs)
        results = self._results.get()
        if results is None:
            raise Interrupted("the sweep has ended")
        return results

    def next(self) -> Batch | None:
        """Wait for the jobs of the next launch; None when there is none.

        Raises:
            Exception: What ended the sweeper early.
        """
        batch = self._batches.get()
        if isinstance(batch, BaseException):
            raise batch
        return batch

    def answer(self, results: list[float | None]) -> None:
        """Let the sweeper go on."""
        self._results.put(results)

    def _sweep(self) -> None:
        try:
            with clear_errors("hydra/sweeper: "), initialize_config_module("conf", version_base="1.3"):
                _set_defaults()
                hydra: Any = GlobalHydra.instance().hydra
                chosen = hydra.compose_config("config", self.given, RunMode.MULTIRUN).hydra.sweeper._target_
                self.optimises = not chosen.endswith(".BasicSweeper")
                hydra.multirun("config", self, self.given)
        except OSError as error:  # of Hydra's, which makes the directory
            self._batches.put(UserError(f"runs_dir: cannot write to {error.filename} ({error.strerror})"))
        except Exception as error:
            self._batches.put(error if self._launched else _of_sweeper(error))
        except BaseException as error:
            self._batches.put(error)
        else:
            self._batches.put(None)


def _check_swept(parsed: Sequence[Override]) -> None:
    """See that what is swept decides something, for every cell by itself.

    Of a key given twice the last value counts in every job, so that cells would be called by values they do not have.

    Raises:
        UserError: Names the key.
    """
    given = Counter(map(key_of, parsed))
    for key in (key_of(each) for each in parsed if each.is_sweep_override()):
        if given[key] > 1:
            raise UserError(f"{key}: is swept, and given {given[key]} times; give it once, e.g. {key}=VALUE,VALUE")
        if re.match(r"(runs_dir|tracking|orchestration|sweep\.ship_winner)(\.|$)", key):
            raise UserError(f"{key}: is the same for all cells of a sweep; give it one value")


def _set_defaults() -> None:
    """Change what Optuna's sweeper does by itself: whatever the user says, in a file or an override, still beats it."""
    Plugins.instance()  # which makes the sweepers known
    store = ConfigStore.instance()
    if "optuna.yaml" in store.list("hydra/sweeper"):
        known = store.load("hydra/sweeper/optuna.yaml")
        known.node.update(_OPTUNA)
        store.store(group=known.group, name=known.name, node=known.node, package=known.package, provider="ratchet")


def _of_sweeper(error: Exception) -> Exception:
    """An error from before anything ran, as the user's: the sweeper was told what it cannot do."""
    if isinstance(error, UserError | Interrupted):
        return error
    said = str(error) or str(traceback.extract_tb(error.__traceback__)[-1].line)  # an assertion, without words
    found = UserError(f"hydra/sweeper: {said.splitlines()[0]}")
    found.__cause__ = error
    return found


def _check_objective(cells: Sequence[Cell]) -> None:
    """See that an optimiser gets something to go by."""
    from flows.sweeps.select_scores import select_config

    for cell in cells:
        chosen = select_config(cell.whole) if cell.whole else None
        tasks = chosen and [suite for suite in chosen.suites.values() if not suite.role.guards]
        if not (tasks and cell.candidate):
            raise UserError(
                "hydra/sweeper: it goes by the mean score of a suite with `role: task` on its `select` split, and the "
                "pipeline has none, or trains nothing; add one, e.g. suite=[arithmetic]"
            )
