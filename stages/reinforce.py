"""Reinforcement learning with rewards that code can check: GRPO, one update per fresh batch (see `stages.grpo`).

For every prompt a group of completions is sampled from the current model, scored by the weighted rewards, and made
more or less likely by how each compares with its own group, while a KL penalty holds the model near its start.
"""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

from transformers import PreTrainedTokenizerBase

from conf.schema import ReinforceConfig
from rewards.scoring import RewardSet, Score
from stages.chat import prompt_ids
from stages.contract import StageContext, StageResult
from stages.fold import load_folded
from stages.generate import Completion, read_completion
from stages.grpo import OnPolicyTrainer, grpo_arguments
from stages.hardware import prepare
from stages.models import load_tokenizer, stop_token_ids
from stages.order import wrapped_order
from stages.rows import Row, read_rows
from stages.training import new_adapter, planned_steps, train_and_fold

GROUPS = "groups/"
"""Prefix of what is logged here through TRL, which has columns of its own called `reward` and `reward_std`."""


def run_reinforce(cfg: ReinforceConfig, ctx: StageContext) -> StageResult:
    """Train a new adapter on the prompts of `ctx.data["train"]`, by the rewards of `ctx.rewards`.

    Raises:
        UserError: There are fewer prompts than one optimiser step takes.
        RewardError: A reward failed; names it, the row and the reason.
        ConfigError: A reward cannot be made, or `cfg.trainer` has a field it must not have.
    """
    prepare(ctx.hardware, ctx.seed)
    tokenizer = load_tokenizer(ctx.start)
    rows = read_rows(ctx.data["train"])
    trainer = reinforce_trainer(cfg, ctx, tokenizer, rows)
    return train_and_fold(trainer, tokenizer, cfg, ctx, rows=len(rows), columns=columns(ctx.rewards))


def columns(rewards: Iterable[str]) -> dict[str, str]:
    """TRL's names of the progress columns of this stage, and ours; `kl` is absent without a KL penalty."""
    ours = ["reward", "reward_std", "completion_len", "truncated", "all_equal", "failed_scores"]
    return {"kl": "kl", **{GROUPS + name: name for name in [*ours, *(f"reward_{name}" for name in rewards)]}}


def reinforce_trainer(
    cfg: ReinforceConfig, ctx: StageContext, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row]
) -> OnPolicyTrainer:
    """The trainer around the folded start model and a new adapter, which TRL makes right after seeding."""
    steps = planned_steps(cfg, len(rows), "prompts")
    rewards = RewardSet(ctx.rewards)
    stop_ids = stop_token_ids(ctx.start, tokenizer)
    return OnPolicyTrainer(
        prompt_ids=[prompt_ids(tokenizer, ctx.start.config, row) for row in rows],
        order=wrapped_order(len(rows), steps * cfg.batch_size * cfg.grad_accum, ctx.seed),
        model=load_folded(ctx.start, ctx.hardware).model,
        args=grpo_arguments(cfg, ctx, steps),
        reward_funcs=total_reward(rows, rewards, tokenizer, stop_ids, cfg.group_size),
        processing_class=tokenizer,
        peft_config=new_adapter(cfg.lora),
    )


def total_reward(
    rows: Sequence[Row],
    rewards: RewardSet,
    tokenizer: PreTrainedTokenizerBase,
    stop_ids: Sequence[int],
    group_size: int,
) -> Callable[..., list[float]]:
    """One TRL reward function for the whole set.

    The total is summed once, in the set; TRL never sees a single reward. Rows are looked up by index, so that their
    columns keep their types on the way to the rewards.
    """

    def total(
        prompts: Sequence[int],
        completion_ids: Sequence[list[int]],
        log_metric: Callable[[str, float], None],
        **_: Any,
    ) -> list[float]:
        completions = [read_completion(tokenizer, ids, stop_ids) for ids in completion_ids]
        scores = [
            _score(rewards, rows[index], completion.text, index)
            for index, completion in zip(prompts, completions, strict=True)
        ]
        for name, value in summary(completions, scores, group_size).items():
            log_metric(GROUPS + name, value)
        return [score.total for score in scores]

    return total


def _score(rewards: RewardSet, row: Row, completion: str, index: int) -> Score:
    return rewards.require(row.prompt_text, completion, row.reference, row.row, where=f"training row {index + 1}")


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
