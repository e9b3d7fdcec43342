"""What TRL's `GRPOTrainer` is told, so that it does plain on-policy GRPO and nothing besides (see `stages.grpo`)."""

from collections.abc import Sequence
from typing import Any

import trl

from conf.processes import share
from conf.training import ReinforceConfig
from stages.arguments import trl_arguments
from stages.contract import StageContext
from stages.vllm import vllm_arguments


def grpo_arguments(cfg: ReinforceConfig, ctx: StageContext, steps: int, stop_ids: Sequence[int] = ()) -> trl.GRPOConfig:
    """TRL's arguments for plain on-policy GRPO.

    A micro-batch is `batch_size` whole groups, or what one of several processes has of them. TRL samples all
    completions of an optimiser step at once; the trainer deals them out to the micro-batches by group. Every
    micro-batch gets equally many and the loss is a mean over completions, so the deal does not change the step's
    gradient. `stop_ids` are what ends a completion, for vLLM.

    Raises:
        ConfigError: `trainer` names a field that Ratchet owns, or one that `GRPOConfig` does not have.
    """
    start = ctx.models.get("start")  # not known before the run
    own = {
        **_batches(cfg, ctx.hardware.num_processes),
        **_sampling(cfg),
        **_objective(cfg),
        **vllm_arguments(cfg.vllm, stop_ids),
        "trust_remote_code": start is not None and start.config.trust_remote_code,  # vLLM loads the model, too
    }
    return trl_arguments(trl.GRPOConfig, cfg, ctx, section="reinforce", max_steps=steps, **own)


def _batches(cfg: ReinforceConfig, processes: int) -> dict[str, Any]:
    """Whole groups for every process: TRL deals the completions of a step out in their order, in equal parts."""
    mine = share(cfg, processes)
    return {
        "per_device_train_batch_size": mine.batch_size * cfg.group_size,
        "num_generations": cfg.group_size,
        "steps_per_generation": mine.grad_accum,
        "generation_batch_size": None,  # follows from the three above
        "num_iterations": 1,
        "shuffle_dataset": False,  # the order is ours
    }


def _sampling(cfg: ReinforceConfig) -> dict[str, Any]:
    """The policy itself is sampled: its distribution at the temperature, nothing cut off, nothing penalised."""
    return {
        "max_completion_length": cfg.max_new_tokens,
        "temperature": cfg.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": None,
        "repetition_penalty": 1.0,
        "chat_template_kwargs": None,  # prompts are rendered before
        "use_transformers_continuous_batching": False,
    }


def _objective(cfg: ReinforceConfig) -> dict[str, Any]:
    return {
        "loss_type": "grpo",
        "scale_rewards": "group",
        "reward_weights": None,  # one reward function, which returns the weighted total
        "multi_objective_aggregation": "sum_then_normalize",
        "beta": cfg.beta,
        "use_bias_correction_kl": False,
        "sync_ref_model": False,
        "mask_truncated_completions": cfg.mask_truncated,
        "importance_sampling_level": "token",
        "epsilon": 0.2,  # of no effect, as the ratio is 1; likewise the next three
        "epsilon_high": None,
        "delta": None,
        "off_policy_mask_threshold": None,
        "top_entropy_quantile": 1.0,
        "entropy_coef": 0.0,
        "use_adaptive_entropy": False,
        "router_aux_loss_coef": 0.0,
        "disable_dropout": False,  # it would silently switch `lora.dropout` off
    }
