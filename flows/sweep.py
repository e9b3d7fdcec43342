"""`ratchet run -m`: Hydra's own sweeper decides the jobs; they run one after the other and share the store.

A mistake in any of them is found before the first one runs. A failed job does not stop the others; every job's outcome
stands in one table at the end.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import hydra
from hydra.core.hydra_config import HydraConfig

from conf.errors import UserError
from conf.run import RunConfig
from flows.commands.run import command_line, run_pipeline
from flows.compose import clear_errors, load_checked, register, to_plain, translate
from flows.outcome import EXIT_CODES, scores
from flows.stop import CANCEL, Stopped
from flows.workspace import Workspace
from stages.table import table


def sweep(overrides: Sequence[str], config_dir: str | None) -> int:
    """Run every job of a sweep.

    Returns:
        0 when all is well, otherwise the exit code of the first job that was not.
    """
    register(config_dir)
    composed: list[tuple[dict[str, Any], list[str]]] = []

    def job(values: Any) -> None:
        composed.append((to_plain(values), [str(item) for item in HydraConfig.get().overrides.task]))

    application = hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")(job)
    arguments = ["ratchet", "--multirun", *translate(overrides)]
    environment = {"HYDRA_FULL_ERROR": "1"}  # Hydra raises instead of printing and exiting
    with patch.object(sys, "argv", arguments), patch.dict(os.environ, environment), clear_errors():
        try:
            application()
        except OSError as error:  # of Hydra's, which makes the directory
            raise UserError(f"runs_dir: cannot write to {error.filename} ({error.strerror})") from error
    jobs = [(_checked(values, asked, _varied(asked, overrides)), asked) for values, asked in composed]
    outcomes, codes = [], []
    for number, (config, asked) in enumerate(jobs):
        code, outcome = _run_job(config, asked, command_line("run", asked, config_dir))
        codes.append(code)
        outcomes.append({"job": str(number), "overrides": " ".join(_varied(asked, overrides)), **outcome})
    print(f"\n{table(outcomes)}")
    return next((code for code in codes if code), 0)


def _checked(values: dict[str, Any], asked: Sequence[str], varied: Sequence[str]) -> RunConfig:
    """The configuration of a job; says of a mistake which job makes it."""
    try:
        config = load_checked(values, asked)
        Workspace(config).check()
    except UserError as error:
        raise UserError(f"{error} (in the job {' '.join(varied)})") from error
    return config


def _run_job(config: RunConfig, overrides: Sequence[str], command: list[str]) -> tuple[int, dict[str, str]]:
    print(f"\n== {' '.join(overrides)}", file=sys.stderr)
    try:
        record = run_pipeline(config, overrides, command)
    except UserError as error:
        return 2, _outcome("bad input", error=str(error))
    except Stopped as stopped:
        if stopped.reason != CANCEL:  # a signal is meant for all jobs
            raise
        return stopped.exit_code, _outcome("cancelled")
    except Exception as error:
        return 1, _outcome("failed", error=f"{type(error).__name__}: {error}")
    return EXIT_CODES[record["verdict"]], _outcome(record["state"], record)


def _outcome(state: str, record: dict[str, Any] | None = None, error: str = "") -> dict[str, str]:
    if record is None:
        return {"state": state, "run": "", "scores": error.splitlines()[0] if error else ""}
    found = [f"{score.suite}.{score.model} {score.mean:.3f}" for score in scores(record)]
    return {"state": state, "run": record["id"], "scores": "  ".join(found)}


def _varied(asked: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The overrides of a job that the sweep itself chose."""
    return [override for override in asked if override not in overrides]
