"""Tasks of lm-evaluation-harness as a suite: its own metrics, row by row, of a model that is already loaded.

The harness loads the tasks, writes the prompts and scores the replies; what comes back is one score per row, in an
order that is the same for every model. It is an extra, and slow to import: only functions that need it do.
"""

import contextlib
import difflib
import io
import random
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from conf.errors import UserError
from conf.loader import dump
from conf.suites import LmEvalConfig
from rewards.sources import files_of, resolve
from stages.cache import file_sha256

FEWSHOT_SEED = 1234
"""lm-eval's own default: which examples stand in front of a question."""


def harness_identity(name: str, config: LmEvalConfig, folder: Path) -> dict[str, Any]:
    """What determines the scores but for the model: settings, files of the user's tasks, the version of lm-eval.

    Tasks that come with lm-eval count by that version; data of the hub by what the task says of it.

    Raises:
        UserError: lm-eval is not installed, or there is no such folder.
    """
    settings = {key: value for key, value in dump(config).items() if key != "include_path"}
    root = _include_path(name, config, folder)
    files = {} if root is None else {file.relative_to(root).as_posix(): file_sha256(file) for file in files_of(root)}
    return {**settings, "files": files, "lm-eval": _version(name)}


def check_harness(name: str, config: LmEvalConfig, folder: Path) -> None:
    """Load the tasks of a suite, to see that they can be had and give a score per row.

    Raises:
        UserError: Names the suite, the task and what would be right.
    """
    root = _include_path(name, config, folder)
    for task_name, task in load_tasks(name, config, folder).items():
        where = f"suite.{name}.lm_eval: task {task_name!r}"
        if getattr(task, "UNSAFE_CODE", False):
            raise UserError(f"{where} runs code that the model writes, unprotected; take a suite with reward command")
        metric, _ = _metric(where, task, config)
        if not task.higher_is_better().get(metric, True):
            raise UserError(
                f"{where}: a lower {metric} is better, and a suite's score must be better when it is higher"
            )
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
        manager = TaskManager(include_path=root)  # reads thousands of files
    for task in config.tasks:
        if task not in manager.all_tasks:
            close = difflib.get_close_matches(task, manager.all_tasks, n=3)
            hint = f"did you mean {', '.join(close)}?" if close else "`lm-eval ls tasks` lists those it comes with"
            raise UserError(f"suite.{name}.lm_eval.tasks: there is no task {task!r}; {hint}")
    with _alone():
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


def _set_fewshot(task: Any, asked: int | None) -> None:
    """As `lm_eval.simple_evaluate` does: a task that says 0 means it."""
    own = task.get_config("num_fewshot")
    if own != 0 and (own is None or asked is not None):
        task.set_config(key="num_fewshot", value=asked or 0)
    task.set_fewshot_seed(seed=FEWSHOT_SEED)


def harness_rows(
    model: Any, name: str, config: LmEvalConfig, batch_size: int, first: int | None = None
) -> list[dict[str, Any]]:
    """Have a model do the tasks.

    Args:
        model: The model (`stages.suite_scores.LoadedModel`).
        name: Of the suite.
        config: Its tasks.
        batch_size: Of lm-eval.
        first: Do only the first rows of the suite.

    Returns:
        For every row the fields of `RowScore`, but for the names of suite and model: the tasks one after the other.
        The completion of a question with choices is the likeliest one.

    Raises:
        UserError: A metric gives no number per row.
    """
    tasks = load_tasks(name, config)
    rows = _chosen_rows(tasks, config.limit, first)
    with _alone():
        from lm_eval.evaluator import evaluate
        from lm_eval.models.huggingface import HFLM

        backend = HFLM(
            pretrained=model.model,
            tokenizer=model.tokenizer,
            batch_size=batch_size,
            chat_template_args=model.ref.config.chat_template_kwargs,
        )
        result = evaluate(
            backend,
            {"tasks": {task: tasks[task] for task in rows}},
            samples=rows,
            bootstrap_iters=0,
            apply_chat_template=config.apply_chat_template,
            fewshot_as_multiturn=True,
        )
    scored = []
    for task in rows:
        where = f"suite.{name}.lm_eval: task {task!r}"
        metric, chosen = _metric(where, tasks[task], config)
        logged = [sample for sample in result["samples"][task] if sample["filter"] == chosen]
        scored += [_row(where, sample, metric, model.tokenizer) for sample in logged]
    return [{"row": number, "sample": 0, **row} for number, row in enumerate(scored)]


def _chosen_rows(tasks: Mapping[str, Any], limit: int | None, first: int | None) -> dict[str, range]:
    """The rows of every task that has some."""
    chosen: dict[str, range] = {}
    left = first
    for name, task in tasks.items():
        count = min(count for count in (len(task.eval_docs), limit, left) if count is not None)
        if count:
            chosen[name] = range(count)
        left = None if left is None else left - count
    return chosen


def _metric(where: str, task: Any, config: LmEvalConfig) -> tuple[str, str]:
    """The metric of a task that scores a row, and the filter of the replies that it looks at."""
    metrics = list(task.aggregation())
    filters = [each.name for each in getattr(task, "_filters", [])] or ["none"]
    metric, _, chosen = (config.metric or metrics[0]).partition(",")
    if metric not in metrics or (chosen and chosen not in filters):
        known = [f"{one},{other}" if len(filters) > 1 else one for one in metrics for other in filters]
        raise UserError(f"{where} has no metric {config.metric!r}; it has {', '.join(known)}")
    return metric, chosen or filters[0]


def _row(where: str, sample: Mapping[str, Any], metric: str, tokenizer: Any) -> dict[str, Any]:
    """One logged sample of lm-eval."""
    values = {key: float(sample[key]) for key in sample["metrics"] if _is_number(sample[key])}
    if metric not in values:
        others = f"; per row it has {', '.join(values)}" if values else ""
        raise UserError(f"{where}: metric {metric!r} is of all rows together{others}")
    completion = _completion(sample)
    return {
        "score": values[metric],
        "values": values,
        "errors": {},
        "completion": completion,
        "tokens": len(tokenizer(completion, add_special_tokens=False)["input_ids"]),
        "characters": len(completion),
        "truncated": False,
        "prompt_tokens": len(tokenizer(sample["arguments"][0][0], add_special_tokens=False)["input_ids"]),
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0)


def _completion(sample: Mapping[str, Any]) -> str:
    """What the model wrote; of several choices the likeliest."""
    replies = [replies[0] for replies in sample["resps"]]
    if isinstance(replies[0], str):
        return replies[0]
    likeliest = max(range(len(replies)), key=lambda index: replies[index][0])
    arguments = sample["arguments"][likeliest]
    return str(arguments[1]) if len(arguments) > 1 else ""


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


def _version(name: str) -> str:
    try:
        return version("lm-eval")
    except PackageNotFoundError:
        raise UserError(
            f'suite.{name}.lm_eval: lm-evaluation-harness is not installed: pip install "ratchet[lm-eval]"'
        ) from None


@contextlib.contextmanager
def _alone() -> Iterator[None]:
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
