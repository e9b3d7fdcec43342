"""The cells of a sweep at the door: composed, checked, and without what belongs to the winner alone."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from conf.errors import UserError
from conf.loader import dump
from conf.run import RunConfig, load_run
from conf.sweep import Runner, unspent
from flows.commands.run import checked, command_line
from flows.compose import key_of, load_checked, parse, to_plain
from flows.live_record import Parent
from flows.store import Entry
from flows.sweeps.select_scores import candidate_step
from flows.workspace import Workspace
from stages.contract import StageResult

SEED = "seed"
"""The override that makes repetitions of a cell, not another one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """One configuration of a sweep.

    Attributes:
        number: From 1, in the order of the sweeper.
        overrides: The command line that runs the same alone.
        chosen: Of these, what the sweeper chose.
        whole: The configuration as asked for.
        config: What the cell runs: the same without the gates at the end, which are for the winner.
        candidate: The step whose model is scored.
        error: Why it cannot run.
        shipping: Whether it does what another did, for its gates at the end.
    """

    number: int
    overrides: Sequence[str]
    chosen: Sequence[str]
    whole: RunConfig | None = None
    config: RunConfig | None = None
    candidate: str | None = None
    error: str = ""
    shipping: bool = False

    @property
    def label(self) -> str:
        """For people to read."""
        return f"cell {self.number}  {' '.join([*self.chosen, *(['to the gate'] if self.shipping else [])])}".rstrip()

    @property
    def settings(self) -> dict[str, str]:
        """What the sweeper chose, by key."""
        keys = map(key_of, parse(self.chosen))
        return {key: text.partition("=")[2] for key, text in zip(keys, self.chosen, strict=True) if "=" in text}

    @property
    def unspent(self) -> str:
        """What it leaves of `sweep.budget`, in words."""
        return unspent(self.config.settings, self.config.sections.sweep.budget) if self.config else ""

    @cached_property
    def ahead(self) -> "Ahead":
        """What the store has of it."""
        assert self.config is not None
        return Ahead(Workspace(self.config))

    def message(self, sweep: Parent, output: str, config_dir: str | None) -> dict[str, Any]:
        """The cell as plain values, for `flows.sweeps.cell_process.do_cell`."""
        assert self.config is not None
        return {
            "config": dump(self.config.sections),
            "overrides": list(self.overrides),
            "command": command_line("run", self.overrides, config_dir),
            "sweep": asdict(sweep),
            "varied": self.settings,
            "candidate": self.candidate,
            "output": output,
        }


def open_cell(number: int, composed: Any, overrides: Sequence[str], fixed: Collection[str]) -> Cell:
    """Check one job of a sweeper.

    Args:
        number: Of the cell.
        composed: Its configuration, composed by Hydra.
        overrides: All overrides of the job.
        fixed: The keys that the sweeper does not choose.

    Raises:
        UserError: What is wrong with it, and that it is this one.
    """
    chosen = chosen_of(overrides, fixed)
    try:
        whole = load_checked(to_plain(composed), overrides)
        config = without_final_gates(whole)
        elsewhere = whole.sections.orchestration.runner is Runner.ray
        checked(config, elsewhere)
        if whole.sections.sweep.ship_winner:
            checked(with_gate(whole), elsewhere)
    except UserError as error:
        raise UserError(f"{error} (in the job {' '.join(chosen)})" if chosen else str(error)) from error
    return Cell(
        number=number,
        overrides=[*overrides, *_without(whole)],
        chosen=chosen,
        whole=whole,
        config=config,
        candidate=candidate_step(whole),
    )


def chosen_of(overrides: Sequence[str], fixed: Collection[str]) -> list[str]:
    """The overrides of a job that the sweeper chose."""
    return [text for text, each in zip(overrides, parse(overrides), strict=True) if key_of(each) not in fixed]


def gate_cell(number: int, winner: Cell) -> Cell:
    """A cell that does what another did, and then what its gates at the end say."""
    assert winner.whole is not None
    names = final_gates(winner.whole)
    overrides = [override for override in winner.overrides if override.removeprefix("~pipeline.") not in names]
    config = with_gate(winner.whole)
    return Cell(
        number=number,
        overrides=[*overrides, *(f"++pipeline.{name}.set.register=true" for name in names)],
        chosen=winner.chosen,
        whole=config,
        config=config,
        shipping=True,
    )


def final_gates(config: RunConfig) -> list[str]:
    """The gates that no other step waits for."""
    needed = {need for step in config.steps.values() for need in step.needs()}
    return [name for name, step in config.steps.items() if step.stage == "gate" and name not in needed]


def without_final_gates(config: RunConfig) -> RunConfig:
    """A configuration that decides nothing at its end; gates on the way register nothing."""
    values = dump(config.sections)
    for override in _without(config):
        name = override.removeprefix("~pipeline.")
        if name != override:
            values["pipeline"][name]["skip"] = True
        else:
            _set_register(values, override.split(".")[1], False)
    return load_run(values)


def _without(config: RunConfig) -> list[str]:
    """The overrides that make of a configuration what its cell runs."""
    final = final_gates(config)
    between = [name for name, step in config.steps.items() if step.stage == "gate" and name not in final]
    registering = [f"++pipeline.{name}.set.register=false" for name in between if config.settings[name].register]
    return [*(f"~pipeline.{name}" for name in final), *registering]


def with_gate(config: RunConfig) -> RunConfig:
    """A configuration whose gates at the end register what they let through.

    Raises:
        UserError: It has no gate at its end.
    """
    values, final = dump(config.sections), final_gates(config)
    if not final:
        raise UserError(
            "sweep.ship_winner: the pipeline has no gate step at its end; add one, e.g. "
            "+pipeline.gate={stage: gate, start: reinforce, baseline: champion, anchor: anchor}"
        )
    for name in final:
        _set_register(values, name, True)
    return load_run(values)


def _set_register(values: dict[str, Any], gate: str, register: bool) -> None:
    step = values["pipeline"][gate]
    step["set"] = {**(step.get("set") or {}), "register": register}


class Ahead:
    """How far the store is for a cell: its next step is the first one that has no result there yet."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._steps = list(workspace.config.steps)
        self._results: dict[str, StageResult] = {}
        self._next: Entry | None = None

    def next(self) -> str | None:
        """The id of the next step's place in the store; None when there is nothing to do, or nothing is known.

        What cannot be read just now, on a disk across a network or because it is being removed, is tried again.
        """
        try:
            if self._next is None or (self._next.path / "result.json").exists():
                self._next = self._find()
        except UserError:  # the cell says so itself
            self._next, self._steps = None, []
        except OSError:
            self._next = None
        return self._next.id if self._next else None

    def _find(self) -> Entry | None:
        workspace = self._workspace
        while self._steps and all(result.verdict != "stop" for result in self._results.values()):
            name = self._steps[0]
            if not workspace.held_by(name, self._results) and workspace.is_due(name, self._results):
                entry = workspace.entry(workspace.inputs(name, self._results))
                result = entry.result()
                if result is None:
                    return entry
                workspace.finish(name, result, self._results)
            self._steps.pop(0)
        return None
