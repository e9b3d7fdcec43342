"""Nights whose gate lets a model through, without the training: real adapters, a real store, a real registry."""

import copy
import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow import MlflowClient
from peft import LoraConfig, get_peft_model

from conf.loader import dump
from conf.run import load_run
from flows.compose import compose_run
from flows.console import Console
from flows.execute import PipelineRun
from flows.mirror import RunMirror
from flows.record import Record
from flows.registry.registered_model import Registry
from flows.registry.shipping import ship
from flows.stop import StopRequest
from flows.store import Entry, Store, write_json
from flows.tracking import Tracker
from flows.workspace import StepInputs, Workspace
from stages.adapters import save_adapter
from stages.contract import Hardware, ModelRef, StageResult
from stages.fold import load_folded
from stages.identity import directory_identity

REASONS = ["arithmetic went from 0.20 to 0.60"]


def trained(runs_dir: Path, start: ModelRef, name: str) -> Entry:
    """A finished `sft` step: an adapter with random weights on a model."""
    store = Store(runs_dir)
    store.prepare()
    entry = store.entry("sft", name)
    entry.path.mkdir()
    adapted = get_peft_model(
        copy.deepcopy(load_folded(start, Hardware()).model),
        LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules="all-linear"),
    )
    generator = torch.Generator().manual_seed(sum(name.encode()))
    with torch.no_grad():
        for key, weight in adapted.named_parameters():
            if "lora_" in key:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    adapter = save_adapter(adapted, start, entry.path / "adapter")
    write_json(entry.path / "receipt.json", {"tensors": 1})
    write_json(entry.path / "inputs.json", {"data": {"source": "rows"}})
    entry.write_result(StageResult(model=start.with_adapter(adapter)), 1.0)
    return entry


@cache
def composed() -> dict[str, Any]:
    return dict(dump(compose_run(["experiment=smoke", "hardware.threads=1"]).sections))


class Night:
    """A run of a pipeline with a gate, open: what its aliases mean is known from here on.

    Args:
        runs_dir: Where it runs.
        start: The candidate, as a step names it.
        step: More of the gate's step.
        sections: More of the configuration.
    """

    def __init__(self, runs_dir: Path, start: str, step: Mapping[str, Any] = {}, **sections: Any) -> None:
        values = {**composed(), "runs_dir": str(runs_dir)}
        gate = {"stage": "gate", "start": start, "baseline": "champion", "set": {"register": True}, **step}
        for key, value in sections.items():
            values[key] = {**values[key], **value} if isinstance(value, Mapping) else value
        self.config = load_run({**values, "pipeline": {"gate": gate}})
        self.lines: list[str] = []
        self.workspace = Workspace(self.config)
        self.workspace.models.find()

    def run(self) -> PipelineRun:
        record = Record(self.config, self.workspace.runs_dir, ())
        record.begin()
        tracker = Tracker(self.config.sections.tracking, self.workspace.runs_dir, self.lines.append)
        console = Console()
        console.say = self.lines.append  # type: ignore[method-assign]
        return PipelineRun(
            config=self.config,
            workspace=self.workspace,
            record=record,
            mirror=RunMirror(tracker, record),
            console=console,
            stop=StopRequest(console.say, record.folder),
        )

    def decided(self, verdict: str = "ship") -> tuple[StepInputs, StageResult]:
        """What the gate step was given, and its result, which is in the store."""
        inputs = self.workspace.inputs("gate", {})
        entry = self.workspace.entry(inputs)
        result = entry.result()
        if result is None:
            shutil.rmtree(entry.path, ignore_errors=True)
            entry.path.mkdir()
            write_json(entry.path / "decision.json", {"verdict": verdict, "reasons": REASONS})
            write_json(entry.path / "inputs.json", inputs.parts)
            result = StageResult(
                model=inputs.models["start"],
                verdict=verdict,
                metrics={"arithmetic.candidate": 0.6, "arithmetic.baseline": 0.2},
                report=verdict.upper(),
            )
            entry.write_result(result, 1.0)
        return inputs, result

    def ship(self) -> StageResult:
        """The gate says ship; what comes of it."""
        run = self.run()
        try:
            inputs, result = self.decided()
            told = ship(run, inputs, result)
            self.workspace.finish("gate", told, run.results)
            run.record.end("completed", told.verdict)
            return told
        finally:
            run.record.release()


def registry(runs_dir: Path, name: str = "ratchet") -> Registry:
    return Registry(f"sqlite:///{runs_dir / 'mlflow.db'}", name)


def numbers(runs_dir: Path) -> dict[str, int]:
    """The version number of every alias, as MLflow has it."""
    return {alias: int(number) for alias, number in registry(runs_dir)._numbers().items()}


def tag(version: Any, name: str) -> Any:
    return json.loads(version.tags[f"ratchet.{name}"])


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def die() -> None:
    raise Killed


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


WRITES = (
    "create_logged_model",
    "log_model_artifacts",
    "finalize_logged_model",
    "create_registered_model",
    "create_model_version",
    "set_registered_model_alias",
    "set_model_version_tag",
)


def killed_at(count: int, patch: pytest.MonkeyPatch, end: Callable[[], None] = die) -> None:
    """Be killed at the call with this number of those that change the registry: before it, or half-way of an upload."""
    calls = iter(range(count + 1))

    def dying(name: str) -> Callable[..., Any]:
        original = getattr(MlflowClient, name)

        def call(self: MlflowClient, *arguments: Any, **named: Any) -> Any:
            last = next(calls) == count
            if last and name == "log_model_artifacts":
                shutil.rmtree(Path(arguments[1]) / "model")
                original(self, *arguments, **named)
            if last:
                end()
            return original(self, *arguments, **named)

        return call

    for name in WRITES:
        patch.setattr(MlflowClient, name, dying(name))


def whole(found: Registry) -> dict[str, int]:
    """The version of every alias; each has a whole model behind it."""
    for alias, number in found._numbers().items():
        folder = found.directory(found.version(number))
        assert directory_identity(folder), alias
    return found._numbers()


def ship_and_die(runs_dir: Path, name: str, count: int) -> None:
    """In a process of its own: ship, and be killed on the way."""
    with pytest.MonkeyPatch.context() as patch:
        killed_at(count, patch, kill)
        Night(runs_dir, f"run/sft-{name}").ship()


def ship_together(runs_dir: Path, name: str, barrier: Any, told: Path) -> None:
    """In a process of its own: ship at the same moment as others, and say what came of it."""
    night = Night(runs_dir, f"run/sft-{name}")
    barrier.wait(120)
    told.write_text(str(night.ship().verdict))
