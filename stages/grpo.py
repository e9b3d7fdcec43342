"""TRL's `GRPOTrainer`, narrowed to plain on-policy GRPO on prompts that are tokenised here.

The algorithm is GRPO (Shao et al. 2024, arXiv:2402.03300, equations 3 and 4) with one update per fresh batch. For
completion i of a group of G with rewards r, and its tokens t up to and with the end token:

    A_i  = (r_i - mean(r)) / (std(r) + 1e-4)                  std with G - 1 in the denominator
    kl_t = exp(ref_t - new_t) - (ref_t - new_t) - 1           Schulman's k3; ref: the start model, adapter off
    loss = mean over i of mean over t of [-A_i * p_t / stop_gradient(p_t) + beta * kl_t]    new_t = log p_t

The batch is sampled from the very weights it updates, so the ratio is exactly 1 and nothing is ever clipped.

Where vLLM samples (`stages.vllm`), it is nearly so: TRL then weighs the first term by the ratio of the two programs'
probabilities, within bounds (its truncated importance sampling).
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import trl
from datasets import Dataset
from transformers import PreTrainedModel

from stages import ranks, sampling
from stages.groups import Group, by_group, grouped, joined
from stages.models import evaluating
from stages.order import fresh_rows
from stages.rollout_model import RolloutModel
from stages.shared_prefix import share_prefixes
from stages.vllm import check_divergence, keep_training_weights, unchanged_environment

RESAMPLED, GENERATED_TOKENS = "groups/resampled", "groups/generated_tokens"
"""Names under which the trainer logs how many groups it replaced, and how many tokens it sampled in all."""


@dataclass(frozen=True, kw_only=True)
class Resampling:
    """How groups without variance are replaced (the dynamic sampling of DAPO, Yu et al. 2025, arXiv:2503.14476).

    Attributes:
        attempts: How often per optimiser step.
        pool: Indices of the rows that may replace others.
        totals: The totals of completions (token ids) of rows, given by index.
    """

    attempts: int
    pool: Sequence[int]
    totals: Callable[[Sequence[int], Sequence[list[int]]], list[float]]


class OnPolicyTrainer(trl.GRPOTrainer):  # type: ignore[misc]
    """GRPO whose rows hold nothing but `prompt`: the index of a row, by which prompts and rewards are looked up.

    Args:
        prompt_ids: Token ids of every row's prompt.
        order: Indices of the rows to train on, one per group.
        resampling: What happens to groups without variance.
        shared_prefix: Compute common prefixes once, in sampling and in training, where the model allows it.
        max_divergence: How far vLLM may be from the policy, where it samples.
        say: Told where it does not.
        **trainer: What `GRPOTrainer` takes besides the data.
    """

    _buffered_inputs: Any  # TRL's: the micro-batches of an optimiser step

    def __init__(
        self,
        prompt_ids: Sequence[list[int]],
        order: Sequence[int],
        resampling: Resampling,
        shared_prefix: bool,
        max_divergence: float,
        say: Callable[[str], None],
        **trainer: Any,
    ) -> None:
        self.prompt_ids = prompt_ids
        self.resampling = resampling
        self.max_divergence = max_divergence
        self._sampled: list[Group] | None = None  # what TRL has yet to ask for
        model = trainer["model"]
        self.shared_prefix = shared_prefix and not trainer["args"].use_vllm and sampling.supports(model)
        # Where the adapter cannot be folded in, it stays beside the model.
        self.rollout = RolloutModel(model) if self.shared_prefix and RolloutModel.can_follow(model) else None
        self._folded_at: int | None = None  # optimiser steps done then
        with unchanged_environment():
            super().__init__(train_dataset=Dataset.from_dict({"prompt": list(order)}), **trainer)
        if self.use_vllm:
            keep_training_weights(self.vllm_generation, self.model)
        if shared_prefix:
            share_prefixes(self.model, prompt_ids, statistics=["entropy"], temperature=self.temperature, say=say)

    def _tokenize_prompts(self, prompts: list[int]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Look the prompts up: TRL's own templating cannot be told of every detail of ours."""
        return [self.prompt_ids[index] for index in prompts], None, {}

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Sample, replace groups without variance, and let TRL go on with what there is then.

        Raises:
            StaleSamplerError: vLLM samples, and not from the policy.
        """
        prompts, self._sampled = self._with_variance([row["prompt"] for row in inputs[:: self.num_generations]])
        repeated = [{"prompt": prompt} for prompt in prompts for _ in range(self.num_generations)]
        batch = super()._generate_and_score_completions(repeated)
        if self.use_vllm:
            check_divergence(batch, self.max_divergence)
        return {**batch, "group": torch.arange(len(prompts)).repeat_interleave(self.num_generations)}

    def _with_variance(self, batch: Sequence[int]) -> tuple[list[int], list[Group]]:
        """The rows of a step and their groups of completions; the step's seed says which rows may stand in.

        Processes that train together take different ones: those that one alone would take for the same groups.
        """
        prompts, groups = list(batch), self._groups(batch)
        tokens, replaced = sum(group.tokens for group in groups), 0
        step = [row for part in ranks.gathered(list(batch)) for row in part]
        for attempt in range(self.resampling.attempts):
            flat = self._without_variance(prompts, groups)
            others = fresh_rows(self.resampling.pool, step, self.args.seed, self.state.global_step, attempt)
            wanted = ranks.gathered(len(flat))
            if not others or not any(wanted):
                break
            before = sum(wanted[: ranks.number()])
            fresh = others[before : before + len(flat)]
            sampled = self._groups(fresh)
            for place, prompt, group in zip(flat, fresh, sampled, strict=False):
                prompts[place], groups[place] = prompt, group
            tokens, replaced = tokens + sum(group.tokens for group in sampled), replaced + len(fresh)
        self._metrics["train"][RESAMPLED].append(sum(ranks.gathered(replaced)))
        self._metrics["train"][GENERATED_TOKENS].append(sum(ranks.gathered(tokens)))
        return prompts, groups

    def _groups(self, prompts: Sequence[int]) -> list[Group]:
        """A fresh group of completions for every row, of which there may be none."""
        if not prompts:
            return []
        size = self.num_generations
        prompt_ids = [self.prompt_ids[prompt] for prompt in prompts for _ in range(size)]
        completions, log_probs = self._generate_single_turn(prompt_ids, None, {}, size)
        return grouped(completions, log_probs, size)

    def _without_variance(self, prompts: Sequence[int], groups: Sequence[Group]) -> list[int]:
        """Places of the groups whose totals are all equal: their advantages are zero."""
        size = self.num_generations
        repeated = [prompt for prompt in prompts for _ in range(size)]
        totals = self.resampling.totals(repeated, joined(groups)[0])
        parted = [totals[start : start + size] for start in range(0, len(totals), size)]
        return [place for place, values in enumerate(parted) if min(values) == max(values)]

    def _generate_single_turn(self, prompt_ids: list[list[int]], *arguments: Any, **options: Any) -> Any:
        """Sample one completion per prompt, without the adapter's dropout, which is for training only."""
        if self._sampled is not None:
            sampled, self._sampled = self._sampled, None
            return joined(sampled)
        if self.shared_prefix:
            return self._sample(prompt_ids[:: self.num_generations]), None
        with evaluating(self.model):
            return super()._generate_single_turn(prompt_ids, *arguments, **options)

    @contextlib.contextmanager
    def policy(self) -> Iterator[PreTrainedModel]:
        """The policy as it is, to answer prompts with."""
        if self.rollout is not None and self._folded_at != self.state.global_step:
            self.rollout.refresh(self.model)
            self._folded_at = self.state.global_step
        with evaluating(self.model), self.accelerator.autocast():
            yield self.model if self.rollout is None else self.rollout.plain

    def _sample(self, prompts: list[list[int]]) -> list[list[int]]:
        """A group of completions per prompt, each up to and with its end token."""
        with self.policy() as policy:
            return sampling.sample(
                policy,
                prompts,
                self.num_generations,
                max_new_tokens=self.max_completion_length,
                temperature=self.temperature,
                stop_ids=self.eos_token_ids,
            )

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Deal completions out by whole groups, where TRL deals them out at random: a group shares its prompt."""
        dealt = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is not dealt:
            self._buffered_inputs = by_group(self._buffered_inputs)
            inputs = self._buffered_inputs[self._step % len(self._buffered_inputs)]
        return inputs
