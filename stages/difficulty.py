"""Prompts of the right difficulty: those that the start model sometimes solves and sometimes does not.

A prompt that is always or never solved gives groups without variance, which cost tokens and teach nothing.
"""

import gc
from collections.abc import Generator, Sequence
from contextlib import closing
from random import Random
from statistics import fmean

from conf.errors import ConfigError, UserError
from conf.training import DifficultyConfig, ReinforceConfig
from stages.contract import StageContext
from stages.kept_replies import FILE as REPLIES
from stages.order import wrapped_order
from stages.rollouts import Rollout, start_sampler
from stages.rows import Row
from stages.samples import write_json_lines
from stages.success import Success
from stages.training import planned_steps

FILE = "difficulty.jsonl"
"""Every measured prompt with its success rate, in the order in which they were measured."""


def prompts_in_band(cfg: ReinforceConfig, ctx: StageContext, rows: Sequence[Row]) -> tuple[list[int], dict[str, float]]:
    """Indices of rows whose success rate on the start model lies in the band, and what it took to find them.

    Prompts are measured in the training order batch by batch, until as many are found as the planned steps
    take, or all are measured.

    Returns:
        The indices, and `difficulty_measured` and `difficulty_kept` (prompts) and `difficulty_tokens` (sampled).

    Raises:
        ConfigError: Nothing tells what a success is.
        UserError: Fewer prompts are in the band than one optimiser step takes.
    """
    band, per_step = cfg.difficulty, cfg.batch_size * cfg.grad_accum
    needed = min(planned_steps(cfg, len(rows), "prompts") * per_step, len(rows))
    kept: list[int] = []
    measured: list[tuple[Rollout, float]] = []
    with closing(_batches(cfg, band, ctx, rows)) as batches:
        for rollouts in batches:
            measured += [(rollout, _success_rate(rollout)) for rollout in rollouts]
            kept = [rollout.index for rollout, rate in measured if band.min_success <= rate <= band.max_success]
            ctx.progress("difficulty", len(measured), len(rows))
            if len(kept) >= needed:
                break
    gc.collect()  # one model in memory at a time
    _write(measured, set(kept), ctx)
    if len(kept) < per_step:
        raise UserError(_too_few(band, len(kept), [rate for _, rate in measured], per_step))
    tokens = sum(each.tokens for rollout, _ in measured for each in rollout.completions)
    counts = {"measured": len(measured), "kept": len(kept), "tokens": tokens}
    return kept, {f"difficulty_{name}": float(value) for name, value in counts.items()}


def _batches(
    cfg: ReinforceConfig, band: DifficultyConfig, ctx: StageContext, rows: Sequence[Row]
) -> Generator[list[Rollout]]:
    """Rollouts of all rows in the training order, a batch of prompts at a time."""
    sampler = start_sampler(
        ctx,
        Success.of(ctx.rewards, band.success, band.success_at),
        samples=band.samples,
        temperature=cfg.temperature,
        max_new_tokens=cfg.max_new_tokens,
        batch_size=band.batch_size,
    )
    order = wrapped_order(len(rows), len(rows), ctx.seed)
    with closing(sampler):
        for start in range(0, len(order), band.batch_size):
            batch = order[start : start + band.batch_size]
            seed = Random(f"{ctx.seed} difficulty {start}").randrange(2**32)
            completions = sampler.complete([rows[index] for index in batch], seed, keep=ctx.out_dir / REPLIES)
            yield [sampler.score(index, rows[index], group) for index, group in zip(batch, completions, strict=True)]


def _success_rate(rollout: Rollout) -> float:
    if rollout.successes is None:
        raise ConfigError(
            f"reinforce.difficulty: training row {rollout.index + 1} has no reference, so nothing tells what a "
            "success is; give reinforce.difficulty.success_at"
        )
    return fmean(rollout.successes)


def _write(measured: Sequence[tuple[Rollout, float]], kept: set[int], ctx: StageContext) -> None:
    lines = (
        {
            "row": rollout.index + 1,
            "prompt": rollout.row.prompt_text,
            "success_rate": rate,
            "kept": rollout.index in kept,
        }
        for rollout, rate in measured
    )
    write_json_lines(ctx.out_dir / FILE, lines)


def _too_few(band: DifficultyConfig, kept: int, rates: Sequence[float], per_step: int) -> str:
    below, above = sum(rate < band.min_success for rate in rates), sum(rate > band.max_success for rate in rates)
    return (
        f"reinforce.difficulty: {kept} of {len(rates)} training prompts have a success rate from {band.min_success:g} "
        f"to {band.max_success:g} ({below} below, {above} above), and an optimiser step takes {per_step}; widen the "
        "band, give more prompts, or a smaller batch_size or grad_accum"
    )
