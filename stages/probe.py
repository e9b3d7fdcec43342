"""The probe: a few samples of the start model, scored by the rewards of the step to come, before any training is paid.

Reinforcement makes what a model sometimes does more likely. Where it never succeeds there is nothing to reinforce, and
where it always does there is little left. The probe stops the pipeline in the first case and warns in the second.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from statistics import fmean
from typing import Any

from conf.measuring import ProbeConfig
from conf.training import ReinforceConfig
from stages.contract import StageContext, StageResult
from stages.hardware import prepare
from stages.order import wrapped_order
from stages.probe_report import judge, report
from stages.rollouts import Rollout, Sampler, start_sampler
from stages.rows import Row, read_rows
from stages.samples import expected, write_json_lines
from stages.statistics import all_equal_share, pass_at_k, wilson_interval
from stages.success import Success


def run_probe(cfg: ProbeConfig, ctx: StageContext) -> StageResult:
    """Sample the start model on the prompts that training would take first; hands the model on.

    The verdict is `stop` where the success rate is below `cfg.min_success`, or `otherwise` where `cfg.otherwise` names
    a step to take; with `cfg.force` it is None all the same.

    Raises:
        RewardError: A reward fails on a completion or on a reference.
        ConfigError: A reward cannot be made.
    """
    prepare(ctx.hardware, ctx.seed)
    rows = read_rows(ctx.data["train"])
    indices = wrapped_order(len(rows), min(cfg.prompts, len(rows)), ctx.seed)
    with closing(_sampler(cfg, ctx)) as sampler:
        rollouts, seconds = _rollouts(sampler, rows, indices, ctx)
    sizes = cfg.group_sizes or [ReinforceConfig.group_size, 2 * ReinforceConfig.group_size]
    metrics = {
        **summary(rollouts, sizes),
        "tokens_per_second": _tokens(rollouts) / seconds,
        **{f"seconds_{name}": value for name, value in sampler.rewards.seconds_per_call().items()},
    }
    verdict, advice = judge(cfg, metrics)
    text = report(metrics, list(ctx.rewards), sampler.success.words(), advice)
    values = {"metrics": metrics, "success": sampler.success.words(), "verdict": verdict, "recommendation": advice}
    path = ctx.out_dir / "probe.json"
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = [line for rollout in rollouts for line in sample_lines(rollout)]
    samples = write_json_lines(ctx.out_dir / "samples.jsonl", lines)
    artifacts = {"samples": samples, "probe": path}
    return StageResult(model=ctx.start, metrics=metrics, artifacts=artifacts, verdict=verdict, report=text)


def _sampler(cfg: ProbeConfig, ctx: StageContext) -> Sampler:
    return start_sampler(
        ctx,
        Success.of(ctx.rewards, cfg.success, cfg.success_at),
        samples=cfg.samples,
        temperature=cfg.temperature or ReinforceConfig.temperature,
        max_new_tokens=cfg.max_new_tokens or ReinforceConfig.max_new_tokens,
        batch_size=cfg.batch_size,
    )


def _rollouts(
    sampler: Sampler, rows: Sequence[Row], indices: Sequence[int], ctx: StageContext
) -> tuple[list[Rollout], float]:
    """The rollouts, and the seconds that sampling alone took."""
    chosen = [rows[index] for index in indices]
    started = time.perf_counter()
    completions = sampler.complete(chosen, ctx.seed, lambda done, total: ctx.progress("sample", done, total))
    seconds = time.perf_counter() - started
    triples = zip(indices, chosen, completions, strict=True)
    return [sampler.score(index, row, group) for index, row, group in triples], seconds


def summary(rollouts: Sequence[Rollout], group_sizes: Sequence[int]) -> dict[str, float]:
    """What the rollouts tell.

    Returns:
        `prompts`, `samples` (completions in all); `reward` (mean total) and `reward_<name>` (mean value, unweighted);
        `completion_len` (mean, in tokens), `truncated` (share of completions), `distinct` (distinct completions as a
        share of a prompt's samples, averaged over prompts), `failed_scores`; for every group size `all_equal_<size>`,
        the predicted share of groups without variance, with `all_equal_<size>_high` where it is a lower bound (see
        `stages.statistics`); and where something tells success, `successes`, `success_rate`, the 95% Wilson interval
        `success_low` to `success_high` and `pass_at_<k>` for 1, 2, 4, ... and all samples. The interval takes all
        samples as independent; as those of one prompt are alike, the true one is somewhat wider.
    """
    completions = [each for rollout in rollouts for each in rollout.completions]
    scores = [score for rollout in rollouts for score in rollout.scores]
    names = scores[0].values
    return {
        "prompts": float(len(rollouts)),
        "samples": float(len(completions)),
        **_success(rollouts),
        "reward": fmean(score.total for score in scores),
        **{f"reward_{name}": fmean(score.values[name] for score in scores) for name in names},
        "completion_len": fmean(each.tokens for each in completions),
        "truncated": fmean(each.truncated for each in completions),
        "distinct": fmean(len({each.text for each in one.completions}) / len(one.completions) for one in rollouts),
        "failed_scores": float(sum(len(score.errors) for score in scores)),
        **_all_equal(rollouts, group_sizes),
    }


def _success(rollouts: Sequence[Rollout]) -> dict[str, float]:
    told = [sum(rollout.successes) for rollout in rollouts if rollout.successes is not None]
    if len(told) < len(rollouts):
        return {}
    samples = len(rollouts[0].completions)
    low, high = wilson_interval(sum(told), samples * len(told))
    ks = [2**power for power in range(math.ceil(math.log2(samples)))] + [samples]
    return {
        "successes": float(sum(told)),
        "success_rate": sum(told) / (samples * len(told)),
        "success_low": low,
        "success_high": high,
        **{f"pass_at_{k}": fmean(pass_at_k(successes, samples, k) for successes in told) for k in ks},
    }


def _all_equal(rollouts: Sequence[Rollout], group_sizes: Sequence[int]) -> dict[str, float]:
    metrics = {}
    for size in group_sizes:
        low, high = all_equal_share([rollout.totals for rollout in rollouts], size)
        metrics[f"all_equal_{size}"] = low
        if high > low:
            metrics[f"all_equal_{size}_high"] = high
    return metrics


def _tokens(rollouts: Sequence[Rollout]) -> int:
    return sum(each.tokens for rollout in rollouts for each in rollout.completions)


def sample_lines(rollout: Rollout) -> list[Mapping[str, Any]]:
    """Every completion of a prompt for samples.jsonl."""
    successes: Sequence[bool | None] = rollout.successes or [None] * len(rollout.completions)
    return [
        {
            "prompt": rollout.row.prompt_text,
            "completion": completion.text,
            "reference": expected(rollout.row),
            "total": score.total,
            "rewards": score.values,
            "success": success,
            "truncated": completion.truncated,
        }
        for completion, score, success in zip(rollout.completions, rollout.scores, successes, strict=True)
    ]
