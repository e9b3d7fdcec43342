"""The files that determine a reward beside its settings: custom code and schemas. Fingerprints hash their content."""

import importlib.util
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from conf.code_rewards import CommandConfig, CustomConfig
from conf.errors import ConfigError
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
    files: set[Path] = set()
    for name, config in configs.items():
        for path in _origins(config, folder):
            if not path.exists():
                raise ConfigError(f"reward {name!r}: there is no {path}")
            files.update(files_of(path))
    return sorted(files)


_LIBRARIES = {"json": "jsonschema", "tool_call": "jsonschema", "math": "math-verify", "gym": "reasoning-gym"}


def reward_libraries(configs: Mapping[str, RewardConfig]) -> list[str]:
    """The distributions that decide what these rewards say, each once, sorted."""
    return sorted({_LIBRARIES[config.type] for config in configs.values() if config.type in _LIBRARIES})


def _origins(config: RewardConfig, folder: Path | None) -> list[Path]:
    if isinstance(config, JsonConfig | ToolCallConfig) and isinstance(config.schema, str):
        return [resolve(config.schema, folder)]
    if isinstance(config, CommandConfig):
        return [resolve(path, folder) for path in [*([config.tests] if config.tests else []), *config.files.values()]]
    if isinstance(config, CustomConfig) and config.path:
        return [resolve(config.path, folder)]
    if isinstance(config, CustomConfig) and config.function:
        return _module_file(config.module_and_name()[0])
    return []


def _module_file(module: str) -> list[Path]:
    spec = _spec(module)
    return [Path(spec.origin)] if spec and spec.origin and spec.origin.endswith(".py") else []


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
