"""Projects whose runs are made by hand: real entries and records, with stand-ins for what the stages compute."""

import copy
import hashlib
import shutil
from pathlib import Path
from typing import Any

from conf.run import RunConfig, load_run
from conf.steps import STAGES
from flows.commands.plan import plan_rows
from flows.record import Record
from flows.store import Entry, write_json
from flows.workspace import Workspace
from stages.contract import Adapter, StageResult

ROWS = "question,answer\n" + "".join(f"What is {n} + 1?,{n + 1}\n" for n in range(60))
REWARD = "def reward(completion):\n    return 1.0\n"
OVERRIDES = (
    "experiment=smoke",
    "data.arithmetic.source=rows.csv",
    "~data.arithmetic.args",
    "+reward.mine.mine={type: custom, path: my_reward.py}",
    "pipeline.reinforce.reward=mine",
    "+pipeline.reinforce.probe=false",
)


class Project:
    """A directory with data, a reward and runs."""

    def __init__(self, folder: Path, values: dict[str, Any]) -> None:
        self.folder, self.values = folder, values
        (folder / "rows.csv").write_text(ROWS)
        (folder / "my_reward.py").write_text(REWARD)

    def config(self, changed: dict[str, Any]) -> RunConfig:
        settings = copy.deepcopy(self.values)
        for key, value in changed.items():
            *path, last = key.split(".")
            section = settings
            for name in path:
                section = section[name]
            section[last] = value
        return load_run(settings)

    def run(self, until: str | None = None, adapter: str = "", **changed: Any) -> dict[str, Entry]:
        """Do what is not cached, as a run would; it may end after a step, and `adapter` makes other adapters."""
        workspace = Workspace(self.config(changed), self.folder)
        workspace.store.prepare()
        workspace.models.find()  # before there is a record: `latest` is another run
        record = Record(workspace.config, workspace.runs_dir, ())
        results: dict[str, StageResult] = {}
        entries = {}
        for name in workspace.config.steps:
            inputs = workspace.inputs(name, results)
            entries[name] = entry = workspace.entry(inputs)
            result = entry.result()
            if result is None:
                shutil.rmtree(entry.path, ignore_errors=True)
                entry.path.mkdir()
                write_json(entry.path / "inputs.json", inputs.parts)
                result = stand_in(entry, inputs.models["start"], inputs.step.stage, adapter)
                entry.write_result(result, 1.0)
            record.update_step(name, state="completed", store=entry.id)
            workspace.finish(name, result, results)
            if name == until:
                break
        record.end("completed")
        return entries

    def plan(self, **changed: Any) -> dict[str, tuple[str, list[str]]]:
        rows = plan_rows(Workspace(self.config(changed), self.folder))
        return {row["step"]: (row["state"], row["changes"]) for row in rows}

    def why(self, **changed: Any) -> dict[str, list[str]]:
        """The steps that would run at once, and why."""
        return {name: why for name, (state, why) in self.plan(**changed).items() if state == "run"}


def stand_in(entry: Entry, start: Any, stage: str, adapter: str) -> StageResult:
    """What a stage leaves, as far as the store looks at it."""
    artifacts = {}
    for name in ("samples", *(("train", "select", "gate") if STAGES[stage].makes_data else ())):
        artifacts[name] = entry.path / f"{name}.jsonl"
        artifacts[name].write_text(f'{{"of": "{entry.id}"}}\n')
    if STAGES[stage].trains:
        weights = f"weights {entry.id} {adapter}".encode()
        for name in ("adapter_model.safetensors", "adapter_config.json", "lineage.json"):
            (entry.path / "adapter").mkdir(exist_ok=True)
            (entry.path / "adapter" / name).write_bytes(weights)
        (entry.path / "receipt.json").write_text('{"tensors": 1}\n')
        (entry.path / "progress.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
        start = start.with_adapter(Adapter(path=entry.path / "adapter", sha256=hashlib.sha256(weights).hexdigest()))
    return StageResult(model=start, metrics={"loss": 0.5}, artifacts=artifacts)
