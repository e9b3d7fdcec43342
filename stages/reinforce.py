"""Reinforcement learning with rewards that code can check: GRPO, one update per fresh batch (see `stages.grpo`).

For every prompt a group of completions is sampled from the current model, scored by the weighted rewards, and made
more or less likely by how each compares with its own group, while a KL penalty holds the model near its start.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from transformers import PreTrainedTokenizerBase

from conf.reward_base import RewardConfig
from conf.training import ReinforceConfig
from rewards.scoring import RewardSet, Score, failures
from stages import ranks
from stages.chat import prompt_ids
from stages.contract import StageContext, StageResult
from stages.difficulty import FILE, prompts_in_band
from stages.generate import Completion, read_completion
from stages.grpo import GENERATED_TOKENS, RESAMPLED, OnPolicyTrainer, Resampling
from stages.grpo_arguments import grpo_arguments
from stages.hardware import prepare
from stages.held_out import held_out_rows
from stages.models import load_tokenizer, stop_token_ids
from stages.order import wrapped_order
from stages.quantise import load_start
from stages.rows import Row, read_rows
from stages.samples import answer
from stages.training import new_adapter, planned_steps, train_and_fold
from stages.vllm import DIVERGENCE

GROUPS = "groups/"
"""Prefix of what is logged here through TRL, which has columns of its own called `reward` and `reward_std`."""


def run_reinforce(cfg: ReinforceConfig, ctx: StageContext) -> StageResult:
    """Train a new adapter on the prompts of `ctx.data["train"]`, by the rewards of `ctx.rewards`.

    Raises:
        UserError: There are fewer prompts (of the asked difficulty) than one optimiser step takes.
        RewardError: A reward failed; names it, the row and the reason.
        StaleSamplerError: vLLM does not sample the model that is trained.
        ConfigError: A reward cannot be made, or `cfg.trainer` has a field it must not have.
    """
    prepare(ctx.hardware, ctx.seed)
    tokenizer = load_tokenizer(ctx.start)
    rows = read_rows(ctx.data["train"])
    pool, measured = list(range(len(rows))), None
    if cfg.difficulty.leaves_out:
        pool, measured = ranks.of_first(lambda: prompts_in_band(cfg, ctx, rows))
    with RewardSet(ctx.rewards) as rewards:
        trainer = reinforce_trainer(cfg, ctx, tokenizer, rows, rewards, pool)
        result = train_and_fold(
            trainer,
            tokenizer,
            cfg,
            ctx,
            numbers=[index + 1 for index in pool],
            measure=lambda: held_out_reward(cfg, ctx, tokenizer, trainer, rewards),
            lower_is_better=False,
            columns=columns(ctx.rewards),
        )
    if measured is None:
        return result
    artifacts = {**result.artifacts, "difficulty": ctx.out_dir / FILE}
    return replace(result, metrics={**result.metrics, **measured}, artifacts=artifacts)


def held_out_reward(
    cfg: ReinforceConfig,
    ctx: StageContext,
    tokenizer: PreTrainedTokenizerBase,
    trainer: OnPolicyTrainer,
    rewards: RewardSet,
) -> dict[str, float]:
    """The mean total of greedy replies to held-out prompts, as `eval_reward`; the processes divide the prompts."""
    rows = held_out_rows(cfg, ctx)
    places = range(ranks.number(), len(rows), ranks.count())
    with trainer.policy() as policy:
        replies = answer(
            policy,
            tokenizer,
            ctx.start,
            [rows[place] for place in places],
            max_new_tokens=cfg.max_new_tokens,
            batch_size=cfg.batch_size * cfg.group_size,
            seed=ctx.seed,
        )
    samples = [rows[place].sample(reply[0].text) for place, reply in zip(places, replies, strict=True)]
    scores = rewards.require_all(samples, lambda index: f"held-out row {places[index] + 1}")
    totals = ranks.gathered([score.total for score in scores])
    return {"eval_reward": fmean(total for part in totals for total in part)}


def columns(rewards: Mapping[str, RewardConfig]) -> dict[str, str]:
    """TRL's names of the progress columns of this stage, and ours.

    `kl` is absent without a KL penalty, `sampling_divergence` without vLLM.
    """
    ours = ["reward", "reward_std", "completion_len", "truncated", "all_equal", "failed_scores"]
    ours += [*(f"reward_{name}" for name in rewards), *failures([], rewards)]
    counts = {RESAMPLED: "resampled", GENERATED_TOKENS: "generated_tokens"}
    return {"kl": "kl", DIVERGENCE: "sampling_divergence", **{GROUPS + name: name for name in ours}, **counts}


def reinforce_trainer(
    cfg: ReinforceConfig,
    ctx: StageContext,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    rewards: RewardSet,
    pool: Sequence[int] | None = None,
) -> OnPolicyTrainer:
    """The trainer around the folded start model and a new adapter, which TRL makes right after seeding.

    It trains on the rows whose indices are in the pool, or on all.
    """
    pool = range(len(rows)) if pool is None else pool
    steps = planned_steps(cfg, len(pool), "prompts")
    stop_ids = stop_token_ids(ctx.start, tokenizer)
    scores = StepScores(rows, rewards, tokenizer, stop_ids)
    places = wrapped_order(len(pool), steps * cfg.batch_size * cfg.grad_accum, ctx.seed)
    return OnPolicyTrainer(
        prompt_ids=[prompt_ids(tokenizer, ctx.start.config, row) for row in rows],
        order=[pool[place] for place in places],
        resampling=Resampling(attempts=cfg.resample, pool=pool, totals=scores.totals),
        shared_prefix=cfg.shared_prefix,
        max_divergence=cfg.vllm.max_divergence,
        say=ctx.say,
        model=load_start(ctx.start, ctx.hardware),
        args=grpo_arguments(cfg, ctx, steps, stop_ids),
        reward_funcs=total_reward(scores, cfg.group_size),
        processing_class=tokenizer,
        peft_config=new_adapter(cfg.lora),
    )


class StepScores:
    """Scores of one optimiser step. Rewards are pure, so nothing is scored twice, however often it is asked for.

    Rows are looked up by index, so that their columns keep their types on the way to the rewards.
    """

    def __init__(
        self, rows: Sequence[Row], rewards: RewardSet, tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int]
    ) -> None:
        self.rows, self.rewards, self.tokenizer, self.stop_ids = rows, rewards, tokenizer, stop_ids
        self._known: dict[tuple[int, str], Score] = {}

    def of(self, prompts: Sequence[int], ids: Sequence[list[int]]) -> tuple[list[Completion], list[Score]]:
        """Read and score completions (token ids) of rows, given by index.

        Raises:
            RewardError: A reward failed; names it, the row and the reason.
        """
        completions = [read_completion(self.tokenizer, each, self.stop_ids) for each in ids]
        keys = [(index, completion.text) for index, completion in zip(prompts, completions, strict=True)]
        new = [key for key in dict.fromkeys(keys) if key not in self._known]
        samples = [self.rows[index].sample(text) for index, text in new]
        scores = self.rewards.require_all(samples, lambda place: f"training row {new[place][0] + 1}")
        self._known.update(zip(new, scores, strict=True))
        return completions, [self._known[key] for key in keys]

    def totals(self, prompts: Sequence[int], ids: Sequence[list[int]]) -> list[float]:
        """The totals alone."""
        return [score.total for score in self.of(prompts, ids)[1]]

    def forget(self) -> None:
        """The step is over."""
        self._known.clear()


def total_reward(step: StepScores, group_size: int) -> Callable[..., list[float]]:
    """One TRL reward function for the whole set: the total is summed once, and TRL never sees a single reward."""

    def total(
        prompts: Sequence[int],
        completion_ids: Sequence[list[int]],
        log_metric: Callable[[str, float], None],
        **_: Any,
    ) -> list[float]:
        completions, scores = step.of(prompts, completion_ids)
        step.forget()
        failed = failures(scores, step.rewards.configs)
        for name, value in {**summary(completions, scores, group_size), **failed}.items():
            counted = name == "failed_scores" or name in failed
            log_metric(GROUPS + name, value * ranks.count() if counted else value)  # TRL takes the processes' mean
        return [score.total for score in scores]

    return total


def summary(completions: Sequence[Completion], scores: Sequence[Score], group_size: int) -> dict[str, float]:
    """One optimiser step in numbers.

    Args:
        completions: Of all groups, one group after the other.
        scores: Theirs.
        group_size: Completions per group.

    Returns:
        `reward` (mean total), `reward_std` (mean over groups of the standard deviation that the advantages are divided
        by), `completion_len` (mean, in tokens), `truncated` (share of completions), `all_equal` (share of groups
        without any variance: they teach nothing), `failed_scores` (how many fell back to a reward's `error_value`),
        and the mean value of every reward, unweighted, as `reward_<name>`.
    """
    totals = [score.total for score in scores]
    groups = [totals[start : start + group_size] for start in range(0, len(totals), group_size)]
    return {
        "reward": fmean(totals),
        "reward_std": fmean(stdev(group) for group in groups),
        "completion_len": fmean(completion.tokens for completion in completions),
        "truncated": fmean(completion.truncated for completion in completions),
        "all_equal": fmean(min(group) == max(group) for group in groups),
        "failed_scores": float(sum(len(score.errors) for score in scores)),
        **{f"reward_{name}": fmean(score.values[name] for score in scores) for name in scores[0].values},
    }
