"""Tasks of lm-evaluation-harness as a suite: which they are, whether they can be used, and what determines them.

lm-eval is an extra, and slow to import: only functions that need it do. `stages.harness_scores` scores models on them.
"""

import contextlib
import difflib
import functools
import io
import itertools
import random
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from conf.errors import UserError
from conf.loader import dump
from conf.suites import LmEvalConfig
from rewards.sources import files_of, resolve
from stages.cache import file_sha256, make_once
from stages.rows import Row, write_rows

FEWSHOT_SEED = 1234
"""lm-eval's own default: which examples stand in front of a question."""

_ROWS = "rows.jsonl"


def harness_identity(name: str, config: LmEvalConfig, folder: Path) -> dict[str, Any]:
    """What determines the scores but for the model: settings, files of the user's tasks, the version of lm-eval.

    Tasks that come with lm-eval count by that version; data of the hub by what the task says of it.

    Raises:
        UserError: lm-eval is not installed, or there is no such folder.
    """
    settings = {key: value for key, value in dump(config).items() if key != "include_path"}
    return {**settings, "files": _hashes(_include_path(name, config, folder)), "lm-eval": _version(name)}


def prepare_tasks(name: str, config: LmEvalConfig, target: Path, folder: Path) -> Path:
    """Write the rows of the tasks into a folder of their own, unless they are there; returns the file.

    The tasks are loaded for that, to see that they can be had and give a score per row.

    Args:
        name: Of the suite.
        config: Its tasks.
        target: The folder; its name is unique to the content.
        folder: What a relative `include_path` is relative to.

    Raises:
        UserError: Names the suite, the task and what would be right.
    """

    def make(draft: Path) -> None:
        tasks = load_tasks(name, config, folder)
        for task_name, task in tasks.items():
            _check(f"suite.{name}.lm_eval: task {task_name!r}", task, config, _include_path(name, config, folder))
        write_rows(draft / _ROWS, (row for each in tasks for row in _rows(each, tasks[each], config.limit)))

    return make_once(target, make, lambda made: (made / _ROWS).is_file()) / _ROWS


def _rows(name: str, task: Any, limit: int | None) -> Iterator[Row]:
    """A task's rows as a person should see them; what the model is asked, lm-eval writes."""
    for number, document in itertools.islice(enumerate(task.eval_docs), limit):
        target = task.doc_to_target(document)
        if isinstance(target, int) and task.get_config("doc_to_choice") is not None:
            choices = task.doc_to_choice(document)
            target = choices[target] if 0 <= target < len(choices) else target
        yield Row(place=f"{name}, row {number + 1}", prompt=str(task.doc_to_text(document)), reference=str(target))


def _check(where: str, task: Any, config: LmEvalConfig, root: Path | None) -> None:
    if getattr(task, "UNSAFE_CODE", False):
        raise UserError(
            f"{where} runs code that the model writes, unprotected; take a suite with a reward of type command"
        )
    metric, _ = row_metric(where, task, config)
    if not task.higher_is_better().get(metric, True):
        raise UserError(f"{where}: a lower {metric} is better, but a suite's score must be better when it is higher")
    for file in _data_files(task):
        if root is None or not file.resolve().is_relative_to(root):
            raise UserError(
                f"{where} reads {file}; put it below lm_eval.include_path, so that a change of it is noticed"
            )


def load_tasks(name: str, config: LmEvalConfig, folder: Path | None = None) -> dict[str, Any]:
    """lm-eval's tasks by name, in a fixed order, with their data.

    Raises:
        UserError: A task does not exist, or cannot be loaded.
    """
    _version(name)
    from lm_eval.tasks import TaskManager

    root = _include_path(name, config, folder)
    manager = TaskManager(include_path=root, include_defaults=False) if root else None
    if manager is None or any(task not in manager.all_tasks for task in config.tasks):
        manager = _with_defaults(root, tuple(_hashes(root).items()))
    for task in config.tasks:
        if task not in manager.all_tasks:
            close = difflib.get_close_matches(task, manager.all_tasks, n=3)
            hint = f"did you mean {', '.join(close)}?" if close else "`lm-eval ls tasks` lists those it comes with"
            raise UserError(f"suite.{name}.lm_eval.tasks: there is no task {task!r}; {hint}")
    with alone():
        try:
            tasks: dict[str, Any] = manager.load(list(config.tasks))["tasks"]
        except Exception as error:  # of the hub, of the data, of code that belongs to a task
            reason = next(iter(str(error).strip().splitlines()), "")
            raise UserError(
                f"suite.{name}.lm_eval: {', '.join(config.tasks)}: cannot be loaded: {type(error).__name__}: {reason}"
            ) from error
    for task in tasks.values():
        _set_fewshot(task, config.num_fewshot)
    return tasks


@functools.lru_cache(maxsize=1)
def _with_defaults(root: Path | None, _: Any) -> Any:
    """An index of the tasks that lm-eval comes with, thousands of files, and of the user's as they are now."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=root)


def _set_fewshot(task: Any, asked: int | None) -> None:
    """As `lm_eval.simple_evaluate` does: a task that says 0 means it."""
    own = task.get_config("num_fewshot")
    if own != 0 and (own is None or asked is not None):
        task.set_config(key="num_fewshot", value=asked or 0)
    task.set_fewshot_seed(seed=FEWSHOT_SEED)


def row_metric(where: str, task: Any, config: LmEvalConfig) -> tuple[str, str]:
    """The metric of a task that scores a row, and the filter of the replies that it looks at."""
    metrics = list(task.aggregation())
    filters = [each.name for each in getattr(task, "_filters", [])] or ["none"]
    metric, _, chosen = (config.metric or metrics[0]).partition(",")
    if metric not in metrics or (chosen and chosen not in filters):
        known = [f"{one},{other}" if len(filters) > 1 else one for one in metrics for other in filters]
        raise UserError(f"{where} has no metric {config.metric!r}; it has {', '.join(known)}")
    return metric, chosen or filters[0]


def _data_files(task: Any) -> Iterator[Path]:
    """The files on this machine that a task reads its rows from."""
    settings = task.get_config("dataset_kwargs") or {}
    files = settings.get("data_files", [])
    groups = files.values() if isinstance(files, Mapping) else [files]
    named = [file for group in groups for file in ([group] if isinstance(group, str) else group)]
    named += [settings[key] for key in ("data_dir",) if settings.get(key)]
    named.append(task.get_config("dataset_path") or "")
    yield from (Path(file) for file in named if file and Path(file).exists())


def _include_path(name: str, config: LmEvalConfig, folder: Path | None) -> Path | None:
    if config.include_path is None:
        return None
    root = resolve(config.include_path, folder)
    if not root.is_dir():
        raise UserError(f"suite.{name}.lm_eval.include_path: there is no folder {root}")
    return root


def _hashes(root: Path | None) -> dict[str, str]:
    return {} if root is None else {file.relative_to(root).as_posix(): file_sha256(file) for file in files_of(root)}


def _version(name: str) -> str:
    try:
        return version("lm-eval")
    except PackageNotFoundError:
        raise UserError(
            f'suite.{name}.lm_eval: lm-evaluation-harness is not installed: pip install "ratchet[lm-eval]"'
        ) from None


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let lm-eval show no progress bars of its own, and leave the random state as it is found."""
    import numpy
    import torch

    states = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
