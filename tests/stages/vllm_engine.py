"""What stands for vLLM in tests, which cannot be installed without a GPU: a model that is given weights, and samples.

Everything on this side of it is TRL's own code and ours. A right engine takes the weights that it is sent; a stale one
goes on with what it loaded at its start.
"""

import math
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trl.generation.vllm_generation
from transformers import AutoModelForCausalLM

from stages import sampling

Weights = Iterable[tuple[str, torch.Tensor]]


class Engine:
    """In place of `vllm.LLM`."""

    fresh = True

    def __init__(self, model: str, **settings: Any) -> None:
        self.settings = settings
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.loads = 0
        runner = SimpleNamespace(model_runner=SimpleNamespace(model=self))
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=runner))

    def load_weights(self, weights: Weights) -> None:
        """As vLLM's models have it: by the names of the plain model."""
        for name, weight in weights:
            parameter = self.model.get_parameter(name)
            assert parameter.shape == weight.shape
            self.loads += 1
            if self.fresh:
                parameter.data.copy_(weight)

    def reset_prefix_cache(self) -> None:
        """Nothing is cached."""

    @torch.no_grad()
    def generate(self, prompts: Sequence[Any], sampling_params: Any, use_tqdm: bool) -> list[Any]:
        """A completion per prompt, with the log-probabilities of its tokens."""
        assert sampling_params.n == 1 and sampling_params.logprobs == 0 and sampling_params.top_p == 1
        ids = [prompt["prompt_token_ids"] for prompt in prompts]
        return [
            SimpleNamespace(prompt_token_ids=prompt, outputs=[output])
            for prompt, output in zip(ids, self.answers(ids, 1, vars(sampling_params)), strict=True)
        ]

    def answers(self, prompts: Sequence[list[int]], samples: int, params: Any) -> list[Any]:
        completions = sampling.sample(
            self.model,
            prompts,
            samples,
            max_new_tokens=params["max_tokens"],
            temperature=params["temperature"],
            stop_ids=params["stop_token_ids"],
        )
        repeated = [prompt for prompt in prompts for _ in range(samples)]
        return [self.told(*pair, params["temperature"]) for pair in zip(repeated, completions, strict=True)]

    def told(self, prompt: list[int], completion: list[int], temperature: float) -> Any:
        logits = self.model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        log_probs = (logits / temperature).log_softmax(-1)[range(len(completion)), completion].tolist()
        told = [{token: SimpleNamespace(rank=1, logprob=p)} for token, p in zip(completion, log_probs, strict=True)]
        return SimpleNamespace(token_ids=completion, logprobs=told)


class StaleEngine(Engine):
    """Takes no weights, and says nothing of it."""

    fresh = False


class SilentEngine(Engine):
    """Cannot say how likely its tokens were."""

    def told(self, *arguments: Any) -> Any:
        output = super().told(*arguments)
        for entry in output.logprobs:
            for value in entry.values():
                value.logprob = math.nan
        return output


class BrokenEngine(Engine):
    """Fails in the middle of an update."""

    def load_weights(self, weights: Weights) -> None:
        super().load_weights(weights)
        if self.loads == 5:
            raise RuntimeError("out of memory")


class Client:
    """In place of TRL's client of a vLLM server."""

    serves = ""

    def __init__(self, base_url: str, group_port: int, connection_timeout: float) -> None:
        self.base_url = base_url

    def init_communicator(self, device: torch.device) -> None:
        """The server has begun by now."""
        self.engine = Engine(self.serves)

    def get_server_info(self) -> Any:
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}

    def update_named_params(self, metadata: Sequence[Any], weights: Weights) -> None:
        """Takes as many as it was told of, and does not ask whether there are more."""
        iterator = iter(weights)
        for name, _, shape in metadata:
            found, weight = next(iterator)
            assert found == name and list(weight.shape) == shape
            self.engine.load_weights([(name, weight)])

    def reset_prefix_cache(self) -> None:
        """Nothing is cached."""

    def generate(self, prompts: Sequence[list[int]], features: Any, **params: Any) -> Any:
        params |= params.pop("generation_kwargs")
        outputs = self.engine.answers(prompts, params["n"], params)
        logprobs = [[[value.logprob for value in entry.values()] for entry in each.logprobs] for each in outputs]
        return {"prompt_ids": prompts, "completion_ids": [each.token_ids for each in outputs], "logprobs": logprobs}


def install(monkeypatch: pytest.MonkeyPatch, engine: type[Engine], serves: str = "") -> None:
    """Let TRL find vLLM installed, with this engine, or with a server of that model."""
    module = trl.generation.vllm_generation
    monkeypatch.setattr(module, "is_vllm_available", lambda: True)
    monkeypatch.setattr(module, "LLM", engine, raising=False)
    monkeypatch.setattr(module, "SamplingParams", SimpleNamespace, raising=False)
    monkeypatch.setattr(module, "VLLMClient", Client)
    monkeypatch.setattr(Client, "serves", serves)
