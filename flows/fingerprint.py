"""What determines a stage's outcome, as one hash: equal fingerprints mean that the work need not be done again."""

import ast
import dataclasses
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import stages
from conf.loader import dump
from stages.cache import file_sha256

LIBRARIES = ("torch", "transformers", "trl", "peft")
"""Libraries whose version can change what a stage computes."""

_OUR_PACKAGES = ("conf", "rewards", "stages")


def digest(value: Any) -> str:
    """A short hash of plain JSON-like values; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


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


@cache
def code_digest(module: str) -> str:
    """Hash of a module's source and of every module of ours that it imports, directly or not."""
    sources: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in sources:
            path = _source(name)
            if path is not None:
                sources[name] = path.read_bytes()
                waiting += _our_imports(sources[name])
    return digest({name: hashlib.sha256(source).hexdigest() for name, source in sources.items()})


def files_digest(paths: Iterable[Path]) -> list[tuple[str, str]]:
    """Names and content hashes of files (not their paths: a moved project keeps its fingerprints)."""
    return sorted((path.name, file_sha256(path)) for path in paths)


def _source(module: str) -> Path | None:
    """The file of one of our modules, found without importing anything."""
    path = Path(stages.__file__).parents[1].joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _our_imports(source: bytes) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.split(".")[0] in _OUR_PACKAGES]
