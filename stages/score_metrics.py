"""Per-row scores as numbers with names, which the progress, the printed table and MLflow show."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rewards.scoring import failures
from stages.contract import ModelRef, Suite
from stages.drift import Drift
from stages.suite_scores import RowScore

STDERR = "stderr"
"""Last part of the name of a metric that holds the standard error of another."""


def summary(rows: Sequence[RowScore]) -> dict[str, float]:
    """Numbers of every model on every suite.

    - `<suite>.<model>`: mean of the suite's total (the accuracy, where the total is 0 or 1).
    - `<suite>.<model>.stderr`: its standard error over rows, of which the samples are one observation.
    - `tokens.<suite>.<model>`, `truncated.<suite>.<model>`: mean length of the replies, share of those that were cut.
    - `information.<suite>.<model>.<reward>`: mean value of a reward that is shown for information.
    - `rows.<suite>`: number of rows.
    """
    found: dict[str, float] = {}
    for (suite, model), replies in _groups(rows).items():
        scores = row_means(replies)
        found |= _mean(f"{suite}.{model}", scores) | {f"rows.{suite}": float(len(scores))}
        found |= _beside(f"{suite}.{model}", replies)
    return found


def gains(rows: Sequence[RowScore], models: Mapping[str, ModelRef]) -> dict[str, float]:
    """What the last training of every model brought, where the model it started from is among them.

    `gain.<suite>.<model>` is the mean difference on the same rows, `gain.<suite>.<model>.stderr` its standard error.
    """
    scores = {group: row_means(replies) for group, replies in _groups(rows).items()}
    found: dict[str, float] = {}
    for suite, model in scores:
        start = _started_from(models[model], models)
        if start is not None:
            pairs = zip(scores[suite, start], scores[suite, model], strict=True)
            found |= _mean(f"gain.{suite}.{model}", [after - before for before, after in pairs])
    return found


def drift_metrics(drift: Mapping[str, Drift]) -> dict[str, float]:
    """`drift.<model>` in nats per token, and `drift.<model>.stderr`."""
    found: dict[str, float] = {}
    for model, each in drift.items():
        found[f"drift.{model}"] = each.mean
        if each.stderr is not None:
            found[f"drift.{model}.{STDERR}"] = each.stderr
    return found


def _groups(rows: Iterable[RowScore]) -> dict[tuple[str, str], list[RowScore]]:
    """Replies by suite and model."""
    groups: dict[tuple[str, str], list[RowScore]] = {}
    for row in rows:
        groups.setdefault((row.suite, row.model), []).append(row)
    return groups


def row_means(replies: Iterable[RowScore]) -> list[float]:
    """The mean score of every row."""
    by_row: dict[int, list[float]] = {}
    for reply in replies:
        by_row.setdefault(reply.row, []).append(reply.score)
    return [statistics.fmean(scores) for scores in by_row.values()]


def failed(rows: Iterable[RowScore], suites: Mapping[str, Suite]) -> dict[str, float]:
    """`failed_scores`, and of them `failed_<name>` for every reward with `on_error: score`, over all suites."""
    errors = Counter(name for row in rows for name in row.errors)
    rewards = [rewards for suite in suites.values() for rewards in (suite.rewards, suite.information)]
    names = [name for configs in rewards for name in failures([], configs)]
    return {
        "failed_scores": float(errors.total()),
        **{name: float(errors[name.removeprefix("failed_")]) for name in names},
    }


def _mean(name: str, values: Sequence[float]) -> dict[str, float]:
    """A mean and its standard error; one value has none."""
    mean = {name: statistics.fmean(values)}
    return mean | ({f"{name}.{STDERR}": statistics.stdev(values) / math.sqrt(len(values))} if len(values) > 1 else {})


def _beside(group: str, replies: Sequence[RowScore]) -> dict[str, float]:
    """What is shown beside the score."""
    return {
        f"tokens.{group}": statistics.fmean(reply.tokens for reply in replies),
        f"truncated.{group}": statistics.fmean(reply.truncated for reply in replies),
        **{
            f"information.{group}.{name}": statistics.fmean(reply.information[name] for reply in replies)
            for name in replies[0].information
        },
    }


def _started_from(ref: ModelRef, models: Mapping[str, ModelRef]) -> str | None:
    """The label of the model that another was trained from, if it is among them."""
    if not ref.adapters:
        return None
    start = replace(ref, adapters=ref.adapters[:-1]).identity
    return next((label for label, model in models.items() if model.identity == start), None)
