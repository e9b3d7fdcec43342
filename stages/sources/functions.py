"""Rows from a Python function: `python:package.module.function`, called with the `args` of the data section.

The module is found like any other import, and after that in the directory the run was started from, so that a
function beside the user's own configuration works and can never shadow an installed package.
"""

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conf.errors import UserError
from stages.sources.record import Record, numbered

PREFIX = "python:"


def read_function(source: str, arguments: Mapping[str, Any], base_dir: Path) -> Iterator[Record]:
    """The mappings that the function returns or yields.

    Raises:
        UserError: There is no such function, the arguments do not fit, or it fails.
    """
    with _importable(base_dir):
        function = _function(source)
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            raise UserError(f"{source}: args do not fit {inspect.signature(function)}: {error}") from None
        try:
            rows = function(**arguments)
            if not isinstance(rows, Iterable) or isinstance(rows, Mapping | str):
                raise UserError(f"{source}: must return or yield mappings, got one {type(rows).__name__}")
            yield from numbered(source, rows)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{source}: failed with {type(error).__name__}: {error}") from error


def source_files(source: str, base_dir: Path) -> list[Path]:
    """The Python file that holds the function, and those beside it that it imports; found without running them.

    Raises:
        UserError: There is no such module, or it has no file.
    """
    files = [_source_file(source, base_dir)]
    for file in files:  # grows meanwhile
        files += [path for path in _beside(file) if path not in files]
    return files


def _beside(file: Path) -> list[Path]:
    """The modules in the file's own directory that it names in an import, by the last part of their names."""
    names: set[str] = set()
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, SyntaxError, ValueError):  # which reading or running it will tell
        nodes = []
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.name.rpartition(".")[2] for alias in node.names}
            names.add((getattr(node, "module", None) or "").rpartition(".")[2])
    return [path for name in sorted(names) if name and (path := file.with_name(f"{name}.py")).is_file()]


def _source_file(source: str, base_dir: Path) -> Path:
    module, _ = _split(source)
    with _importable(base_dir):
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            spec = None
    if spec is None:
        raise UserError(f"{source}: there is no module {module!r} (looked among what is installed and in {base_dir})")
    if spec.origin is None or not Path(spec.origin).is_file():
        raise UserError(f"{source}: {module!r} is no Python file; expected python:package.module.function")
    return Path(spec.origin)


def _split(source: str) -> tuple[str, str]:
    module, _, function = source.removeprefix(PREFIX).rpartition(".")
    if not module or not function or module.startswith("."):
        raise UserError(f"{source}: expected python:package.module.function")
    return module, function


def _function(source: str) -> Callable[..., Any]:
    module_name, name = _split(source)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"{source}: cannot import {module_name!r}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{source}: {module_name!r} has no function {name!r}")
    return function  # type: ignore[no-any-return]


@contextmanager
def _importable(directory: Path) -> Iterator[None]:
    """Look for modules in the directory too, after everything else."""
    importlib.invalidate_caches()
    added = str(directory) not in sys.path  # else, removing it would take away the one before us
    if added:
        sys.path.append(str(directory))
    try:
        yield
    finally:
        if added:
            sys.path.remove(str(directory))
