"""Sampling by vLLM through TRL: weights that TRL must leave alone, and whether vLLM samples the policy at all.

After every optimiser step TRL merges the adapter into the weights, sends them to vLLM, and takes the adapter out again.
In 16 bits that does not give back what was there, and the error adds up. And a vLLM that has missed an update, or has
other weights, answers as if nothing were wrong; but it says how likely it took its tokens to be, and the model in
training can say the same of them.
"""

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from peft import PeftModel

from conf.loader import dump
from conf.vllm import VLLMConfig
from stages.fold import lora_layers

DIVERGENCE = "sampling/sampling_logp_difference/mean"
"""TRL's name of the number that is watched."""


class StaleSamplerError(RuntimeError):
    """What is sampled is not what is trained; the message says by how much, and what to look at."""


def vllm_arguments(config: VLLMConfig, stop_ids: Sequence[int]) -> dict[str, Any]:
    """What TRL's `GRPOConfig` is told of vLLM; all of it, also where vLLM is not used."""
    given = {f"vllm_{name}": value for name, value in dump(config).items() if name != "max_divergence"}
    used = config.mode is not None
    return {
        **given,
        "vllm_mode": given["vllm_mode"] or "colocate",
        "use_vllm": used,
        "vllm_importance_sampling_correction": True,  # also makes TRL compute the log-probabilities that are compared
        "vllm_importance_sampling_cap": None,
        "vllm_structured_outputs_regex": None,
        "generation_kwargs": {"stop_token_ids": list(stop_ids)} if used else None,
    }


@contextlib.contextmanager
def unchanged_environment() -> Iterator[None]:
    """Leave the environment as it is found: TRL writes a rank into it for vLLM, and later trainers would go by that."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def keep_training_weights(generation: Any, model: PeftModel) -> None:
    """Let TRL's synchronisation with vLLM leave the training weights as they were, to the bit.

    Args:
        generation: TRL's `VLLMGeneration`.
        model: The model in training. What is beneath its adapter is frozen, so one copy, in the host's memory, is
            enough for all of training.
    """
    synchronise = generation.sync_weights
    layers = [layer for _, layer in lora_layers(model)]
    copies = [layer.get_base_layer().weight.detach().to("cpu", copy=True) for layer in layers]

    @functools.wraps(synchronise)
    def sync_weights() -> None:
        try:
            synchronise()
        finally:
            for layer, weight in zip(layers, copies, strict=True):
                layer.get_base_layer().weight.data.copy_(weight)
                layer.merged_adapters.clear()  # TRL leaves them merged where it does not come to the end

    generation.sync_weights = sync_weights


def check_divergence(batch: Mapping[str, Any], limit: float) -> None:
    """See that the tokens of a batch were sampled from the model in training.

    If they were, vLLM's log-probabilities are the model's own, up to the rounding of two programs; the mean over many
    tokens of the absolute difference is then small (a few hundredths of a nat in bfloat16).

    Args:
        batch: As TRL makes it: `sampling_per_token_logps`, `old_per_token_logps` (the model's, before the update) and
            `completion_mask`, all (completions, tokens).
        limit: Largest mean difference, in nats per token.

    Raises:
        StaleSamplerError: It is larger, or vLLM gives no log-probabilities.
    """
    kept = batch["completion_mask"].bool()
    if not kept.any():  # every completion was cut, and such ones are left out
        return
    apart = (batch["sampling_per_token_logps"] - batch["old_per_token_logps"])[kept].double()
    apart = apart[~apart.isnan()]  # vLLM could not say
    if not len(apart):
        raise StaleSamplerError(
            "vLLM gives no log-probabilities of what it samples, so nothing tells what it sampled from"
        )
    mean = float(apart.abs().mean())
    if not mean <= limit:
        raise StaleSamplerError(
            "vLLM does not sample the model that is trained: the log-probabilities that the two give its tokens differ "
            f"by {mean:.3g} nats on average, and {limit:g} are allowed (reinforce.vllm.max_divergence); the divergence "
            f"of vLLM's model from the trained one is about {float(apart.mean()):.3g} nats per token. Its weights are "
            "stale or another model's, or a server was started without --logprobs-mode processed_logprobs"
        )
