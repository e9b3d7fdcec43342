"""What determines a stage's outcome, as one hash: equal fingerprints mean that the work need not be done again."""

import ast
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import stages
from conf.loader import dump
from conf.reward_base import RewardConfig
from conf.run import RunConfig
from conf.schema import ModelConfig
from conf.training import ReinforceConfig
from rewards.sources import reward_files, reward_libraries, reward_settings
from stages.cache import file_sha256
from stages.contract import Hardware, ModelRef
from stages.identity import read_template

LIBRARIES = ("torch", "transformers", "trl", "peft")
"""Libraries whose version can change what a stage computes."""

_OUR_PACKAGES = ("conf", "rewards", "stages")
_OUR_MODULE = re.compile(rf"\b(?:{'|'.join(_OUR_PACKAGES)})(?:\.\w+)+")


def digest(value: Any) -> str:
    """A short hash of plain JSON-like values; the order of keys does not matter."""
    return _sha256(value)[:16]


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def step_parts(
    config: RunConfig,
    name: str,
    hardware: Hardware,
    base_dir: Path,
    *,
    models: Mapping[str, ModelRef],
    data_id: Any,
    rewards: Mapping[str, RewardConfig],
    suite_ids: Mapping[str, Any],
) -> dict[str, Any]:
    """All that can change what a step leaves, as plain JSON; its digest is the step's fingerprint."""
    stage = config.steps[name].stage
    parts = {
        stage: outcome_fields(config.settings[name]),
        "models": {label: ref.identity for label, ref in models.items() if _matters(label, stage)},
        "data": data_id,
        **reward_parts(rewards, base_dir),
        "suite": suite_ids,
        "seed": config.sections.seed,
        "hardware": vars(hardware),
        "model": _chat_parts(models["start"].config),
        "code": code_digest(f"stages.{stage}"),
        "libraries": {**library_versions(), **_extra_versions(config.settings[name], hardware)},
    }
    plain: dict[str, Any] = json.loads(json.dumps(parts, default=str))  # as it comes back from a file
    return plain


def _matters(label: str, stage: str) -> bool:
    """Only a stage that takes several models depends on the names of the steps its start went through."""
    return not label.startswith("chain.") or stage == "evaluate"


def outcome_fields(config: Any) -> dict[str, Any]:
    """The settings of a dataclass that can change an outcome, nested ones included."""
    values = {}
    for field in dataclasses.fields(config):
        if field.metadata.get("outcome", True):
            value = getattr(config, field.name)
            values[field.name] = outcome_fields(value) if dataclasses.is_dataclass(value) else dump(value)
    return values


def library_versions(names: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Installed versions of libraries; those that compute, unless others are named."""
    return {name: version(name) for name in names}


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """The same of those that are installed: a bundle may be made where no step computes."""
    return {name: found for name in names if (found := _version(name)) is not None}


def _extra_versions(settings: Any, hardware: Hardware) -> dict[str, str | None]:
    """Versions of what only some settings compute with; None where it is not installed, which `plan` does not mind."""
    used = {
        "accelerate": hardware.num_processes > 1,
        "deepspeed": "ACCELERATE_USE_DEEPSPEED" in hardware.accelerate,
        "bitsandbytes": hardware.load_in_4bit,
        "vllm": isinstance(settings, ReinforceConfig) and settings.vllm.mode is not None,
    }
    return {name: _version(name) for name, needed in used.items() if needed}


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def reward_parts(configs: Mapping[str, RewardConfig], folder: Path) -> dict[str, Any]:
    """What determines what rewards say: settings, the content of their files, libraries. Not where the files lie."""

    def sources(name: str, config: RewardConfig) -> dict[str, dict[str, str]]:
        by_setting = reward_files(name, config, folder).items()
        return {setting: {key: file_sha256(file) for key, file in files.items()} for setting, files in by_setting}

    return {
        "reward": {
            name: {**reward_settings(config, folder), "sources": sources(name, config)}
            for name, config in configs.items()
        },
        "reward_libraries": library_versions(reward_libraries(configs)),
    }


def _chat_parts(model: ModelConfig) -> dict[str, Any]:
    """What of the model section is not in the model's identity: how a conversation is written, and where it ends."""
    return {
        "chat_template": None if model.chat_template is None else read_template(model.chat_template),
        "chat_template_kwargs": model.chat_template_kwargs,
        "stop_tokens": model.stop_tokens,
    }


@cache
def code_digest(module: str) -> str:
    """Hash of a module's source and of every module of ours that it imports or starts, directly or not."""
    sources: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in sources:
            path = _source(name)
            if path is not None:
                sources[name] = path.read_bytes()
                waiting += _our_modules(sources[name])
    return _sha256({name: hashlib.sha256(source).hexdigest() for name, source in sources.items()})


def _source(module: str) -> Path | None:
    """The file of one of our modules, found without importing anything."""
    path = Path(stages.__file__).parents[1].joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _our_modules(source: bytes) -> tuple[str, ...]:
    """Modules of ours that a source imports, or names in a text: `python -m` and `python -c` start some."""
    names: list[str] = []
    docstrings: set[ast.AST] = set()  # met before what is in them
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr):
            docstrings.add(node.value)
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            names += _OUR_MODULE.findall(node.value)
    return tuple(name for name in names if name.split(".")[0] in _OUR_PACKAGES)
