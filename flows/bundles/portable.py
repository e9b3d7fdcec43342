"""A configuration that means the same on another machine: nothing in it names a place or a state of this one.

Files move to places below the bundle's directory, `auto` hardware and revisions become what they were resolved to, runs
and aliases become entries of the store that travel along. None of this changes a fingerprint: where things lie does not
count. What stays with the machine (MLflow's address, where runs live) is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import conf
from conf.code_rewards import CommandConfig, CustomConfig
from conf.errors import UserError
from conf.loader import dump
from conf.registry import REGISTERED
from conf.reward_base import RewardConfig
from conf.schema import DataConfig, ModelConfig
from conf.steps import BASE
from conf.sweep import OrchestrationConfig
from conf.training import ReinforceConfig
from conf.vllm import VLLM_ADDRESS, VLLMConfig
from flows.bundles.edges import PortableEdges
from flows.bundles.places import RUNS, Places
from flows.bundles.redaction import refuse_private
from flows.store import Entry
from flows.workspace import Workspace
from rewards.sources import resolve, reward_libraries, reward_origins
from stages.contract import StageResult
from stages.identity import is_local, model_files
from stages.sources import GYM_PREFIX, PREFIX, resolve_revision, source_file, source_files

_PYTHON = ("python", "python3")
_RATCHET = Path(conf.__file__).parents[1]


@dataclass
class Portable:
    """What another machine needs of this one.

    Attributes:
        values: The configuration.
        files: Where local files go: place in the bundle to path.
        origins: The files and folders that the configuration named, and their places.
        entries: Entries of the store that the pipeline's edges name.
        programs: Programs that have to be on the other machine's PATH.
        variables: Names of environment variables that it has to have.
        packages: Distributions beside Ratchet's own requirements.
        notices: What a person should know.
    """

    values: dict[str, Any]
    files: dict[str, Path] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    programs: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    packages: set[str] = field(default_factory=set)
    notices: list[str] = field(default_factory=list)


def make_portable(workspace: Workspace, results: Mapping[str, StageResult]) -> Portable:
    """The configuration of a workspace, and what it needs.

    Args:
        workspace: The configuration on this machine.
        results: The results that are there, by step.

    Raises:
        UserError: Something cannot travel; says what, and what would.
    """
    return _Maker(workspace, results).make()


class _Maker:
    def __init__(self, workspace: Workspace, results: Mapping[str, StageResult]) -> None:
        self._workspace = workspace
        self._config, self._base_dir = workspace.config, workspace.base_dir.resolve()
        self._places = Places(self._base_dir, workspace.runs_dir)
        self._take = self._places.take
        self._edges = PortableEdges(workspace, results)
        self._made = Portable(
            values=dump(workspace.config.sections),
            files=self._places.files,
            origins=self._places.origins,
            entries=self._edges.entries,
        )

    def make(self) -> Portable:
        values, config = self._made.values, self._config
        used = {step.data for step in config.steps.values() if isinstance(step.data, str)}
        used |= {suite.data for suite in config.suites.values() if suite.data}
        values["runs_dir"] = RUNS
        values["tracking"]["uri"] = None
        values["registry"]["fallback"] = BASE
        values["hardware"] |= {name: vars(self._workspace.hardware)[name] for name in ("device", "dtype", "threads")}
        if config.sections.hardware.accelerate_config is not None:
            values["hardware"]["accelerate_config"] = self._take(Path(config.sections.hardware.accelerate_config))
        values["model"] |= self._model(config.sections.model)
        values["data"] = {name: self._data(name, data) for name, data in config.data.items() if name in used}
        values["reward"] = {
            group: {name: self._reward(f"reward.{group}.{name}", reward) for name, reward in rewards.items()}
            for group, rewards in config.rewards.items()
        }
        values["suite"] = {name: self._suite(name) for name in config.suites}
        values["pipeline"] = {name: self._edges.step(name, step) for name, step in values["pipeline"].items()}
        if self._workspace.training_hardware.load_in_4bit:
            self._made.packages.add("bitsandbytes")
        if any(isinstance(each, ReinforceConfig) and each.vllm.mode for each in config.settings.values()):
            self._made.packages.add("vllm")
        self._reset_addresses()
        refuse_private(values)
        return self._made

    def _reset_addresses(self) -> None:
        """What runs side by side, and where vLLM serves, is for the other machine to say."""
        values, defaults = self._made.values, dump(VLLMConfig())
        values["orchestration"] = dump(OrchestrationConfig())
        steps = {f"pipeline.{name}.set": step.get("set") or {} for name, step in values["pipeline"].items()}
        for key, settings in {"reinforce": values["reinforce"], **steps}.items():
            vllm = settings.get("vllm") or {}
            changed = {name: defaults[name] for name in VLLM_ADDRESS if name in vllm}
            if any(vllm[name] != default for name, default in changed.items()):
                self._made.notices.append(f"{key}.vllm: the address of the server stays here; say there which it has")
            vllm |= changed

    def _model(self, model: ModelConfig) -> dict[str, Any]:
        """The base model: a reference, or the files of a directory; and its chat template."""
        changed: dict[str, Any] = {"revision": self._workspace.models.base.revision}
        base = self._workspace.models.base.config
        if model.id.startswith(REGISTERED):
            if is_local(base.id):
                raise UserError(
                    f"model.id: {model.id} is in the registry of this machine; export it (ratchet export RUN --out "
                    "DIR) and bundle with model.id=DIR"
                )
            changed |= {"id": base.id, "fallback": None}
        if is_local(base.id):
            folder = Path(base.id).expanduser()
            changed["id"] = f"./{self._take(folder, model_files(folder))}"
        if base.chat_template is not None and "{" not in base.chat_template:
            changed["chat_template"] = self._take(Path(base.chat_template).expanduser())
        return changed

    def _data(self, name: str, data: DataConfig) -> dict[str, Any]:
        values: dict[str, Any] = dump(data)
        if data.source.startswith(PREFIX):
            self._module(data.source.removeprefix(PREFIX).rpartition(".")[0], data.source)
        elif data.source.startswith(GYM_PREFIX):
            self._made.packages.add("reasoning-gym")
        elif (path := source_file(data.source, self._base_dir)) is not None:
            values["source"] = self._take(path)
        else:
            values["revision"] = resolve_revision(data)
        return values

    def _reward(self, key: str, reward: RewardConfig) -> dict[str, Any]:
        values: dict[str, Any] = dump(reward)
        self._made.packages |= set(reward_libraries({key: reward}))
        for setting, path in reward_origins(reward, self._base_dir).items():
            if setting == "function":
                continue
            if not path.exists():
                raise UserError(f"{key}: there is no {path}")
            place = self._take(path)
            if setting == "command":
                values["command"][0] = f"./{place}"
            elif setting.startswith("files."):
                values["files"][setting.removeprefix("files.")] = place
            else:
                values[setting] = place
        if isinstance(reward, CustomConfig) and reward.function:
            self._require_module(key, reward.module_and_name()[0])
        if isinstance(reward, CommandConfig):
            self._command(key, reward, values)
        return values

    def _command(self, key: str, reward: CommandConfig, values: dict[str, Any]) -> None:
        """What a program needs beside the files that its settings name."""
        self._made.programs |= {word for word in values["command"][:1] if "/" not in word and word not in _PYTHON}
        beyond = [word for word in reward.command if word.startswith(("/", "~"))]
        beyond += [path for path in reward.visible if Path(path).is_absolute() or not self._places.relative(Path(path))]
        if beyond:
            raise UserError(
                f"{key}: names {beyond[0]}, which another machine does not have; put it in the project and name it by "
                "a relative path (a program on the PATH by its name alone)"
            )
        for path in reward.visible:
            self._take(resolve(path, self._base_dir))

    def _suite(self, name: str) -> dict[str, Any]:
        suite = self._config.suites[name]
        values: dict[str, Any] = dump(suite)
        if suite.judge is not None and suite.judge.api_key_env:
            self._made.variables.add(suite.judge.api_key_env)
        if suite.lm_eval is not None:
            self._made.packages.add("lm-eval")
            if suite.lm_eval.include_path is not None:
                values["lm_eval"]["include_path"] = self._take(resolve(suite.lm_eval.include_path, self._base_dir))
        return values

    def _require_module(self, key: str, module: str) -> None:
        """A function of an installed package stays a reference to that package."""
        owners = packages_distributions().get(module.split(".")[0])
        if not owners:
            raise UserError(f"{key}.function: {module} belongs to no installed package; give its file as path: FILE")
        self._made.packages |= set(owners) - {"ratchet"}

    def _module(self, module: str, source: str) -> None:
        """A user's own function travels as its files; one of an installed package stays a reference to that, too."""
        file, *beside = source_files(source, self._base_dir)
        if file.is_relative_to(_RATCHET):
            return
        if owners := packages_distributions().get(module.split(".")[0]):
            self._made.packages |= set(owners)
        else:
            self._places.take_module(module, file, beside)
