"""A configuration that means the same on another machine: nothing in it names a place or a state of this one.

Files move to places below the bundle's directory, `auto` hardware and revisions become what they were resolved to, runs
and aliases become entries of the store that travel along. None of this changes a fingerprint: where things lie does not
count. What stays with the machine (MLflow's address, where runs live) is left out.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions
from pathlib import Path, PurePosixPath
from typing import Any

import conf
from conf.code_rewards import CommandConfig, CustomConfig
from conf.errors import UserError
from conf.loader import dump
from conf.registry import REGISTERED
from conf.reward_base import RewardConfig
from conf.schema import DataConfig, ModelConfig
from conf.steps import ALIASES, BASE
from conf.sweep import OrchestrationConfig
from conf.training import ReinforceConfig
from conf.vllm import VLLM_ADDRESS, VLLMConfig
from flows.bundles.archive import MANIFEST, can_name
from flows.bundles.redaction import refuse_private
from flows.store import Entry
from flows.workspace import Workspace
from rewards.sources import files_of, resolve, reward_libraries, reward_origins
from stages.contract import ModelRef, StageResult
from stages.identity import is_local, model_files
from stages.sources import GYM_PREFIX, PREFIX, resolve_revision, source_file, source_files

RUNS, FILES = "runs", "files"
"""In a bundle: where runs live, and where files lie that have no place of their own."""

EXPERIMENT = "conf/experiment/bundled.yaml"
TAKEN = ("README.md", "run.sh", "config.json", "constraints.txt", EXPERIMENT, MANIFEST)
"""What a bundle has of its own."""

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
        self._workspace, self._results = workspace, results
        self._config, self._base_dir = workspace.config, workspace.base_dir.resolve()
        self._made = Portable(values=dump(workspace.config.sections))

    def make(self) -> Portable:
        values, config = self._made.values, self._config
        used = {step.data for step in config.steps.values() if isinstance(step.data, str)}
        used |= {suite.data for suite in config.suites.values() if suite.data}
        values["runs_dir"] = RUNS
        values["tracking"]["uri"] = None
        values["registry"]["fallback"] = BASE
        values["hardware"] |= {name: vars(self._workspace.hardware)[name] for name in ("device", "dtype", "threads")}
        if config.sections.hardware.accelerate_config is not None:
            values["hardware"]["accelerate_config"] = self._place(Path(config.sections.hardware.accelerate_config))
        values["model"] |= self._model(config.sections.model)
        values["data"] = {name: self._data(name, data) for name, data in config.data.items() if name in used}
        values["reward"] = {
            group: {name: self._reward(f"reward.{group}.{name}", reward) for name, reward in rewards.items()}
            for group, rewards in config.rewards.items()
        }
        values["suite"] = {name: self._suite(name) for name in config.suites}
        for name, step in values["pipeline"].items():
            values["pipeline"][name] = self._step(name, step)
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
            changed["id"] = f"./{self._place_all(Path(base.id).expanduser(), model_files(Path(base.id).expanduser()))}"
        if base.chat_template is not None and "{" not in base.chat_template:
            changed["chat_template"] = self._place(Path(base.chat_template).expanduser())
        return changed

    def _data(self, name: str, data: DataConfig) -> dict[str, Any]:
        values: dict[str, Any] = dump(data)
        if data.source.startswith(PREFIX):
            self._place_module(data.source.removeprefix(PREFIX).rpartition(".")[0], data.source)
        elif data.source.startswith(GYM_PREFIX):
            self._made.packages.add("reasoning-gym")
        elif (path := source_file(data.source, self._base_dir)) is not None:
            values["source"] = self._place(path)
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
            place = self._place(path)
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
        beyond += [path for path in reward.visible if Path(path).is_absolute() or not self._relative(Path(path))]
        if beyond:
            raise UserError(
                f"{key}: names {beyond[0]}, which another machine does not have; put it in the project and name it by "
                "a relative path (a program on the PATH by its name alone)"
            )
        for path in reward.visible:
            self._place(resolve(path, self._base_dir))

    def _suite(self, name: str) -> dict[str, Any]:
        suite = self._config.suites[name]
        values: dict[str, Any] = dump(suite)
        if suite.judge is not None and suite.judge.api_key_env:
            self._made.variables.add(suite.judge.api_key_env)
        if suite.lm_eval is not None:
            self._made.packages.add("lm-eval")
            if suite.lm_eval.include_path is not None:
                values["lm_eval"]["include_path"] = self._place(resolve(suite.lm_eval.include_path, self._base_dir))
        return values

    def _step(self, name: str, step: Mapping[str, Any]) -> dict[str, Any]:
        """A step as declared, with edges that lead out of the pipeline naming an entry that travels along."""
        edges = {label: step[label] for label in ("start", "baseline", "anchor") if step.get(label)}
        changed: dict[str, Any] = {label: self._edge(name, label, edge) for label, edge in edges.items()}
        if step.get("models"):
            changed["models"] = [self._edge(name, "", edge) for edge in step["models"]]
        return {**step, **changed}

    def _edge(self, step: str, label: str, edge: str) -> str:
        if edge not in ALIASES and not edge.startswith("run/"):
            return edge
        models, declared = self._workspace.models, self._config.steps.get(step)  # None for one that is left out
        known = declared is not None and all(need in self._results for need in declared.needs())
        compared = known and label in ("baseline", "anchor")
        model = models.of_step(step, self._results)[label] if compared else models.model(edge, {})
        return self._named(f"pipeline.{step}.{label or 'models'}: {edge}", model)

    def _named(self, what: str, model: ModelRef) -> str:
        """A model as an edge: the base, or the entry that left it."""
        if model.sha256 != self._workspace.models.base.sha256:
            raise UserError(f"{what} has another base, and cannot travel; compare with a run of this one, or with base")
        if not model.adapters:
            return BASE
        entries = [Entry(adapter.path.parent) for adapter in model.adapters]
        self._made.entries += [entry for entry in entries if entry not in self._made.entries]
        return f"run/{entries[-1].id}"

    def _require_module(self, key: str, module: str) -> None:
        """A function of an installed package stays a reference to that package."""
        owners = packages_distributions().get(module.split(".")[0])
        if not owners:
            raise UserError(f"{key}.function: {module} belongs to no installed package; give its file as path: FILE")
        self._made.packages |= set(owners) - {"ratchet"}

    def _place_module(self, module: str, source: str) -> None:
        """The file of a user's own function, and those beside it that it imports, where it is found again."""
        file, *beside = source_files(source, self._base_dir)
        if file.is_relative_to(_RATCHET):
            return
        if owners := packages_distributions().get(module.split(".")[0]):
            self._made.packages |= set(owners)
            return
        package = Path(*module.split("."))
        folder = package if file.name == "__init__.py" else package.parent
        for path in (file, *beside):
            self._add(str(folder / path.name), path)
        above = file.parents[1:] if file.name == "__init__.py" else file.parents
        packages = folder.parents if folder is package else (folder, *folder.parents)
        for inner, directory in zip(packages, above, strict=False):
            if str(inner) != "." and (directory / "__init__.py").is_file():
                self._add(str(inner / "__init__.py"), directory / "__init__.py")

    def _relative(self, path: Path) -> PurePosixPath | None:
        """Where a path lies in the project; None for one outside, or among the runs."""
        absolute = Path(os.path.abspath(self._base_dir / path))
        if not absolute.is_relative_to(self._base_dir) or absolute.is_relative_to(self._workspace.runs_dir):
            return None
        relative = PurePosixPath(absolute.relative_to(self._base_dir).as_posix())
        return None if relative.parts[:1] in ((), (RUNS,), (FILES,)) or str(relative) in TAKEN else relative

    def _place(self, path: Path) -> str:
        """Take a file or a folder along; returns its place, which is its own wherever that can be."""
        return self._place_all(path, files_of(path))

    def _place_all(self, path: Path, files: list[Path]) -> str:
        place = self._relative(path) or PurePosixPath(FILES, path.name)
        number = 1
        while any(self._made.files.get(str(target), file) != file for target, file in _targets(place, path, files)):
            number += 1
            place = PurePosixPath(FILES, str(number), path.name)
        for target, _ in _targets(place, path, files):
            if not can_name(str(target)):
                raise UserError(f"{str(target)!a}: no other machine may know such a name; rename the file")
        self._made.files |= {str(target): file for target, file in _targets(place, path, files)}
        self._made.origins[path.absolute()] = str(place)
        return str(place)

    def _add(self, place: str, path: Path) -> None:
        if self._made.files.setdefault(place, path) != path:
            raise UserError(f"{path}: another file is packed as {place}, too; rename one of them")


def _targets(place: PurePosixPath, path: Path, files: list[Path]) -> list[tuple[PurePosixPath, Path]]:
    """The places of a folder's files, or that of a file."""
    return [(place / file.relative_to(path).as_posix() if file != path else place, file) for file in files]
