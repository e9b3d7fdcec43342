"""The door: what can be known to be wrong is found before a run begins and before any model is loaded."""

from typing import TYPE_CHECKING

from rewards.scoring import RewardSet
from stages.apart import check_apart
from stages.hardware import check_4bit, check_device
from stages.preflight import PlannedStep, Sources, check_rows, check_sharding, check_trainers, check_vllm

if TYPE_CHECKING:
    from flows.workspace import Workspace


def check_workspace(workspace: "Workspace", elsewhere: bool) -> None:
    """Try the store, the device, data, rewards, models to start from, rows, TRL settings and lengths.

    What is quick to try comes first; torch is loaded only after all that needs none.

    Args:
        workspace: What to try.
        elsewhere: Whether the steps run on another machine, which tries its device itself.

    Raises:
        UserError: The first thing that is wrong.
    """
    workspace.store.prepare()
    files = {name: workspace.suites.prepared(name) for name in workspace.suites.sources()}
    for rewards in workspace.config.rewards.values():
        RewardSet(rewards, workspace.base_dir).close()
    found = workspace.models.find()
    sections = workspace.config.data
    sources = Sources({path: (name, sections[name].source) for name in files for path in files[name].values()})
    steps = [_planned(workspace, name) for name in workspace.config.steps]
    check_rows(steps, sources, workspace.base_dir)
    check_apart(steps, sources)
    check_4bit(workspace.training_hardware)
    if not elsewhere:
        check_device(workspace.training_hardware)
    check_sharding(steps, workspace.training_hardware)
    if not elsewhere:
        check_vllm(steps, workspace.training_hardware)
        check_trainers(steps, workspace.training_hardware)

    for model in found:
        if model.adapters:
            from stages.adapters import check_chain  # loads peft

            check_chain(model)
    from stages.lengths import Lengths  # loads transformers

    Lengths(workspace.models.base, sources).check(steps)
    for name, judge in {name: suite.judge for step in steps for name, suite in step.suites.items()}.items():
        if judge is not None:
            from stages.judge import check_judge  # loads torch

            check_judge(name, judge)


def _planned(workspace: "Workspace", name: str) -> PlannedStep:
    """A step as its stage will be given it, as far as that is known before the run."""
    step = workspace.config.steps[name]
    return PlannedStep(
        name=name,
        stage=step.stage,
        settings=workspace.config.settings[name],
        data=workspace.suites.prepared(step.data) if isinstance(step.data, str) else {},
        rewards=workspace.config.rewards[step.reward] if step.reward else {},
        suites=workspace.suites.as_stage(workspace.suites.of(step)),
    )
