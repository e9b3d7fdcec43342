"""The files that determine a reward beside its settings: custom code and schemas. Fingerprints hash their content."""

import importlib.util
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from conf.code_rewards import CommandConfig, CustomConfig
from conf.errors import ConfigError
from conf.loader import dump
from conf.reward_base import RewardConfig
from conf.structured_rewards import JsonConfig, ToolCallConfig


def resolve(path: str, folder: Path | None) -> Path:
    """A path of a reward's settings: absolute, or relative to `folder`, or else to the current directory."""
    beside = (folder or Path()).joinpath(Path(path).expanduser())
    return (beside if beside.exists() else Path(path).expanduser()).resolve()


def reward_sources(configs: Mapping[str, RewardConfig], folder: Path | None = None) -> list[Path]:
    """Every file whose content determines a reward, sorted; of a folder all files but caches and hidden ones.

    Raises:
        ConfigError: A file or folder does not exist; names the reward.
    """
    by_setting = [group for name in configs for group in reward_files(name, configs[name], folder).values()]
    return sorted({file for group in by_setting for file in group.values()})


def reward_files(name: str, config: RewardConfig, folder: Path | None = None) -> dict[str, dict[str, Path]]:
    """A reward's files by the setting that names them; those of one setting by their path below what it names.

    Raises:
        ConfigError: A file or folder does not exist; names the reward.
    """
    found = {}
    for setting, path in reward_origins(config, folder).items():
        if not path.exists():
            raise ConfigError(f"reward {name!r}: there is no {path}")
        root = path if path.is_dir() else path.parent
        found[setting] = {file.relative_to(root).as_posix(): file for file in files_of(path)}
    return found


def reward_settings(config: RewardConfig, folder: Path | None = None) -> dict[str, Any]:
    """A reward's settings without its paths: what lies there counts (`reward_files`), and not where it lies."""
    settings: dict[str, Any] = dump(config)
    for setting in {name.split(".")[0] for name in reward_origins(config, folder)}:
        if setting == "command":
            settings[setting][0] = Path(settings[setting][0]).name
        elif setting != "function":  # the name of a module is no path
            del settings[setting]
    return settings


_LIBRARIES = {"json": "jsonschema", "tool_call": "jsonschema", "math": "math-verify", "gym": "reasoning-gym"}


def reward_libraries(configs: Mapping[str, RewardConfig]) -> list[str]:
    """The distributions that decide what these rewards say, each once, sorted."""
    return sorted({_LIBRARIES[config.type] for config in configs.values() if config.type in _LIBRARIES})


def reward_origins(config: RewardConfig, folder: Path | None) -> dict[str, Path]:
    """The files and folders a reward's settings name, by setting (`files.<name>` for each of several).

    `function` is the file of a module; it is not there where the module is no Python file.
    """
    if isinstance(config, CustomConfig) and config.function:
        return _module_file(config.module_and_name()[0])
    named: dict[str, Any] = {}
    if isinstance(config, JsonConfig | ToolCallConfig) and isinstance(config.schema, str):
        named["schema"] = config.schema
    if isinstance(config, CustomConfig):
        named["path"] = config.path
    if isinstance(config, CommandConfig):
        named = {"tests": config.tests, **{f"files.{name}": path for name, path in config.files.items()}}
        named["command"] = next((word for word in config.command[:1] if _is_own_program(word)), None)
    return {setting: resolve(path, folder) for setting, path in named.items() if path}


def _is_own_program(word: str) -> bool:
    """Whether a program lies in the project: an absolute path, like a bare name, is one that is installed."""
    return "/" in word and not word.startswith(("/", "~"))


def _module_file(module: str) -> dict[str, Path]:
    spec = _spec(module)
    return {"function": Path(spec.origin)} if spec and spec.origin and spec.origin.endswith(".py") else {}


def _spec(module: str) -> ModuleSpec | None:
    """Where a module is, found without importing it or the packages it is in, which may take long."""
    top, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module of this process that did not come from a file
        return None
    for name in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{name}", spec.submodule_search_locations)
    return spec


def files_of(path: Path) -> list[Path]:
    """The file itself, or the files of a folder, sorted, without caches and hidden ones."""
    if path.is_file():
        return [path]
    inside = [(file, file.relative_to(path).parts) for file in sorted(path.rglob("*"))]
    return [
        file
        for file, parts in inside
        if file.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in parts)
    ]
