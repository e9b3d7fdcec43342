"""`ratchet probe`: sample a start model as the probe of a pipeline would, and do nothing else."""

import argparse
import json
from dataclasses import replace
from typing import Any

from conf.errors import ConfigError
from conf.loader import dump
from conf.run import RunConfig, load_run
from conf.steps import BASE
from flows.commands.run import command_line, run_pipeline
from flows.compose import compose_run
from flows.outcome import EXIT_CODES, outcome_text


def main(arguments: argparse.Namespace) -> int:
    """Print what the probe finds; returns the exit code, 5 where there is too little to reinforce."""
    config = compose_run(arguments.overrides, arguments.config_dir)
    command = command_line("probe", arguments.overrides, arguments.config_dir, "--start", arguments.start)
    record = run_pipeline(probe_alone(config, arguments.start), arguments.overrides, command)
    print(json.dumps(record) if arguments.json else outcome_text(record))
    return EXIT_CODES[record["verdict"]]


def probe_alone(config: RunConfig, start: str = BASE) -> RunConfig:
    """A pipeline of one step: the probe that stands, or would stand, before the first reinforce step.

    Args:
        config: A whole pipeline.
        start: `base`, or the run whose model to sample.

    Raises:
        ConfigError: No step reinforces, or its rows are made by another step.
    """
    name = next((name for name, step in config.steps.items() if step.stage == "reinforce"), None)
    if name is None:
        raise ConfigError("pipeline: has no reinforce step to probe for; choose one, e.g. experiment=demo")
    if config.steps[name].data_step:
        raise ConfigError(
            f"pipeline.{name}.data: its rows are made by step {config.steps[name].data_step!r}, so there are none "
            "before a run; `ratchet run` probes by itself when it gets there"
        )
    values: dict[str, Any] = dump(config.sections)
    values["pipeline"][name]["probe"] = True
    whole = load_run(values)
    probe = whole.steps[name].start
    step: dict[str, Any] = {
        "stage": "probe",
        "start": start if start == BASE else f"run/{start.removeprefix('run/')}",
        "data": whole.steps[probe].data,
        "reward": whole.steps[probe].reward,
        "set": dump(replace(whole.settings[probe], otherwise=None)),
    }
    section = {**values["probe"], "otherwise": None}
    return load_run({**values, "name": f"{config.sections.name}-probe", "pipeline": {"probe": step}, "probe": section})
