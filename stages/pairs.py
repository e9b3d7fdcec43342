"""Preference pairs from the model's own samples: the best against the worst, as the rewards see them.

Every prompt is sampled several times from the folded start model; where the totals differ by at least `min_gap`, the
best and the worst become `chosen` and `rejected` of a row that `preference` can take. The held-out rows go along
unchanged, so that the steps that follow have the same held-out prompts.
"""

import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conf.errors import UserError
from conf.reward_base import RewardConfig
from conf.training import PairsConfig
from rewards.scoring import RewardSet, Score, failures
from stages.contract import StageContext, StageResult
from stages.fold import load_folded
from stages.generate import Completion
from stages.hardware import prepare
from stages.kept_replies import FILE
from stages.models import load_tokenizer
from stages.packed import pack
from stages.rows import Row, read_rows, write_rows
from stages.samples import answer, write_json_lines

N_SAMPLES = 8
"""Pairs kept in samples.jsonl for a person to read."""


@dataclass(frozen=True)
class Pair:
    """The better and the worse of one prompt's completions, and how far their totals are apart."""

    row: Row
    gap: float


def run_pairs(cfg: PairsConfig, ctx: StageContext) -> StageResult:
    """Sample, score and pair; leaves the rows `train`, `select` and `gate`.

    Raises:
        RewardError: A reward fails on a completion.
        UserError: No prompt gave a pair.
    """
    prepare(ctx.hardware, ctx.seed)
    rows = read_rows(ctx.data["train"], cfg.max_prompts)
    completions = _sample(rows, cfg, ctx)
    scores = _score(rows, completions, ctx)
    pairs = [
        pair
        for row, texts, values in zip(rows, completions, scores, strict=True)
        if (pair := best_and_worst(row, texts, [score.total for score in values], cfg.min_gap))
    ]
    if not pairs:
        raise UserError(
            f"none of {len(rows)} prompts gave a pair: within every prompt the {cfg.samples} totals differ by less "
            f"than min_gap {cfg.min_gap:g}; sample more, raise the temperature, lower min_gap or look at the rewards"
        )
    return StageResult(
        model=ctx.start,
        metrics=_metrics(pairs, completions, scores, ctx.rewards),
        artifacts={
            "train": write_rows(ctx.out_dir / "train.jsonl", (pair.row for pair in pairs)),
            **_copy_held_out(ctx),
            "samples": write_json_lines(ctx.out_dir / "samples.jsonl", map(_sample_line, pairs[:N_SAMPLES])),
        },
    )


def best_and_worst(row: Row, completions: Sequence[Completion], totals: Sequence[float], min_gap: float) -> Pair | None:
    """The row with its `chosen` and `rejected` reply, or None when the totals are too close.

    Among equals, a reply that ended by itself is the better one, and then the one sampled first is taken.
    """
    numbers = range(len(completions))
    best = min(numbers, key=lambda number: (-totals[number], completions[number].truncated, number))
    worst = min(numbers, key=lambda number: (totals[number], not completions[number].truncated, number))
    gap = totals[best] - totals[worst]
    if gap < min_gap:
        return None
    return Pair(replace(row, chosen=completions[best].text, rejected=completions[worst].text), gap)


def _sample(rows: Sequence[Row], cfg: PairsConfig, ctx: StageContext) -> list[list[Completion]]:
    return answer(
        pack(load_folded(ctx.start, ctx.hardware).model),
        load_tokenizer(ctx.start),
        ctx.start,
        rows,
        max_new_tokens=cfg.max_new_tokens,
        batch_size=cfg.batch_size,
        seed=ctx.seed,
        temperature=cfg.temperature,
        samples=cfg.samples,
        progress=lambda done, total: ctx.progress("sample", done, total),
        keep=ctx.out_dir / FILE,
    )


def _score(rows: Sequence[Row], completions: Sequence[Sequence[Completion]], ctx: StageContext) -> list[list[Score]]:
    """One score per completion, in groups as the completions are."""
    numbers = [number for number, texts in enumerate(completions) for _ in texts]
    texts = [text.text for group in completions for text in group]
    samples = [rows[number].sample(text) for number, text in zip(numbers, texts, strict=True)]
    with RewardSet(ctx.rewards) as rewards:
        scores = iter(rewards.require_all(samples, lambda index: f"training row {numbers[index] + 1}"))
    return [[next(scores) for _ in group] for group in completions]


def _metrics(
    pairs: Sequence[Pair],
    completions: Sequence[Sequence[Completion]],
    scores: Sequence[Sequence[Score]],
    rewards: Mapping[str, RewardConfig],
) -> dict[str, float]:
    texts = [text for group in completions for text in group]
    flat = [score for group in scores for score in group]
    return {
        "prompts": len(completions),
        "pairs": len(pairs),
        "no_pair": 1 - len(pairs) / len(completions),
        "mean_gap": statistics.fmean(pair.gap for pair in pairs),
        "mean_reward": statistics.fmean(score.total for score in flat),
        "truncated": sum(text.truncated for text in texts) / len(texts),
        "failed_scores": sum(len(score.errors) for score in flat),
        **failures(flat, rewards),
    }


def _copy_held_out(ctx: StageContext) -> dict[str, Path]:
    names = [name for name in ("select", "gate") if name in ctx.data]
    return {name: Path(shutil.copyfile(ctx.data[name], ctx.out_dir / f"{name}.jsonl")) for name in names}


def _sample_line(pair: Pair) -> dict[str, Any]:
    return {
        "prompt": pair.row.prompt_text,
        "chosen": pair.row.chosen,
        "rejected": pair.row.rejected,
        "gap": pair.gap,
        "reference": pair.row.reference,
    }
