"""A model that is already loaded does tasks of lm-evaluation-harness: a score per row, always in the same order.

lm-eval writes the prompts and scores the replies.
"""

from collections.abc import Mapping
from typing import Any

from conf.errors import UserError
from conf.suites import LmEvalConfig
from stages.harness import alone, load_tasks, row_metric
from stages.suite_scores import LoadedModel


def harness_rows(
    model: LoadedModel, name: str, config: LmEvalConfig, batch_size: int, first: int | None = None
) -> list[dict[str, Any]]:
    """Have a model do the tasks.

    Args:
        model: The model.
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
    with alone():
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
        metric, chosen = row_metric(where, tasks[task], config)
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
