"""Reward `custom`: a user's own function `reward`, from a file, a folder or an installed module.

The function is called by keyword with those of `prompt`, `completion`, `reference` and `row` that it names, and
returns a finite number (True is 1, False is 0). What it raises becomes an error of the reward, with type, message and
line; it is never scored 0. It must be pure: Ratchet calls it in any order, in several worker processes (see
`rewards.workers`), where the columns of a row have the types that JSON has. TRL-style functions: `rewards.trl_style`.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from conf.code_rewards import CustomConfig
from conf.errors import ConfigError
from rewards.contract import Reward, RewardError, Sample, Value, description, shown
from rewards.sources import files_of, resolve
from rewards.trl_style import TrlReward, is_trl_style

_ARGUMENTS = ("prompt", "completion", "reference", "row")


def custom(config: CustomConfig, folder: Path | None) -> Reward:
    """The value the function returns.

    Raises:
        ConfigError: The function cannot be loaded, or asks for an argument that rewards do not have.
    """
    key = "function" if config.function else "path"
    function, where = _load(config, folder)
    if config.args is not None:
        function = _made(function, config.args)
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        raise ConfigError(f"{key}: {where!r} is asynchronous; a reward is a plain function")
    if is_trl_style(function):
        return TrlReward(function, where, key, config.conversational)
    if config.conversational is not None:
        raise ConfigError(f"conversational: {where} is not a TRL-style function; it has no parameter 'completions'")
    return _single(function, where, _arguments(function, where, key))


def _single(function: Callable[..., Any], where: str, names: Sequence[str]) -> Reward:
    def reward(sample: Sample) -> Value:
        values = {"prompt": sample.prompt, "completion": sample.completion, "reference": sample.reference}
        arguments = {name: dict(sample.row) if name == "row" else values[name] for name in names}
        try:
            value = function(**arguments)
        except (Exception, SystemExit) as error:
            raise RewardError(description(error)) from error
        return Value(value, f"{where} returned {value!r:.40}")

    return reward


def _load(config: CustomConfig, folder: Path | None) -> tuple[Callable[..., Any], str]:
    if config.function:
        module, name = config.module_and_name()
        key, load = "function", lambda: importlib.import_module(module)
    else:
        path, name = resolve(str(config.path), folder), "reward"
        key, load = "path", lambda: _module(path)
    found, function = _imported(key, module if config.function else str(path), load, name)
    if not callable(function):
        raise ConfigError(f"{key}: {found.__file__ or found.__name__} has no function {name!r}")
    return function, name if config.function else Path(str(found.__file__)).name


def _made(factory: Callable[..., Any], args: Mapping[str, Any]) -> Callable[..., Any]:
    """The reward function that a function of the settings makes when called with `args`."""
    try:
        function = factory(**args)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"args: {description(error)}") from error
    if not callable(function):
        raise ConfigError(f"args: the function called with them returned {shown(function)}, not a reward function")
    return function  # type: ignore[no-any-return]


def _imported(key: str, what: str, load: Callable[[], ModuleType], name: str) -> tuple[ModuleType, Any]:
    """The module and what it calls `name`; modules may be lazy, and import only when asked for it."""
    try:
        module = load()
        return module, getattr(module, name, None)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        hint = ""
        if key == "path" and isinstance(error, ModuleNotFoundError):
            hint = "; a reward of several files is a folder, whose files import each other as `from . import name`"
        raise ConfigError(f"{key}: {what} cannot be imported: {description(error)}{hint}") from error


def _module(path: Path) -> ModuleType:
    """Import a file, or a folder as a package, under a name of its own: edited code is imported anew."""
    if not path.exists():
        raise ConfigError(f"path: there is no {path}")
    digest = hashlib.sha256(str(path).encode())
    for file in files_of(path):
        digest.update(file.read_bytes())
    name = f"_ratchet_reward_{digest.hexdigest()[:16]}"
    if path.is_file():
        return _execute(name, path)
    if (path / "__init__.py").is_file():
        return _execute(name, path / "__init__.py", package=path)
    if not (path / "reward.py").is_file():
        raise ConfigError(f"path: the folder {path} has neither __init__.py nor reward.py")
    package = sys.modules.setdefault(name, ModuleType(name))
    package.__path__ = [str(path)]
    return _execute(f"{name}.reward", path / "reward.py")


def _execute(name: str, file: Path, package: Path | None = None) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    locations = None if package is None else [str(package)]
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=locations)
    if spec is None or spec.loader is None:
        raise ConfigError(f"path: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _arguments(function: Callable[..., Any], where: str, key: str) -> list[str]:
    """Which arguments to pass: those the function names, all of them for `**kwargs`."""
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            return list(_ARGUMENTS)
        if name in _ARGUMENTS and parameter.kind is not parameter.POSITIONAL_ONLY:
            names.append(name)
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            hint = "; a function that makes the reward function needs args" if key == "function" else ""
            raise ConfigError(
                f"{key}: {where} asks for {name!r}; it is called by keyword with any of {', '.join(_ARGUMENTS)}{hint}"
            )
    return names
