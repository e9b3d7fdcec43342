"""Sampling by vLLM, through TRL: what may be chosen of it.

Names and defaults are those of TRL's `GRPOConfig` without their prefix `vllm_`; a test holds them to the installed TRL.
"""

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from conf.addresses import names_http_server
from conf.errors import ConfigError
from conf.options import option

_WHOLE_POLICY = "the policy itself is sampled, with nothing cut off and nothing penalised; leave it out"


class VLLMMode(enum.Enum):
    """Where vLLM runs."""

    colocate = "colocate"
    server = "server"


class VLLMModel(enum.Enum):
    """Whose code of the model vLLM runs."""

    vllm = "vllm"
    transformers = "transformers"


class ImportanceSampling(enum.Enum):
    """What is done with too large ratios of the trained model's probability to vLLM's: of a token, or a completion."""

    token_truncate = "token_truncate"
    token_mask = "token_mask"
    sequence_truncate = "sequence_truncate"
    sequence_mask = "sequence_mask"


@dataclass
class VLLMConfig:
    """Let vLLM sample the completions (extra `ratchet[vllm]`; needs a GPU)."""

    mode: VLLMMode | None = None
    """`colocate`: vLLM in the process that trains, on its GPU; `server`: one that runs elsewhere, with GPUs of its own
    (`vllm serve`, with `--logprobs-mode processed_logprobs`). When absent Ratchet samples by itself."""
    max_divergence: float = option(0.1, gt=0)
    """Mean difference, in nats per token, between the log-probabilities of a step's tokens by vLLM and by the model in
    training; above it the stage stops, because vLLM has stale or other weights."""
    importance_sampling_mode: ImportanceSampling = ImportanceSampling.sequence_mask
    """How ratios that are out of bounds are treated: clipped (`truncate`), or their completions left out (`mask`)."""
    importance_sampling_clip_max: float | None = option(3.0, gt=0)
    """Largest ratio."""
    importance_sampling_clip_min: float | None = option(None, gt=0)
    """Smallest ratio."""
    model_impl: VLLMModel = VLLMModel.vllm
    """`colocate`: vLLM's own code of the model, or transformers'."""
    gpu_memory_utilization: float = option(0.3, gt=0, le=1, outcome=False)
    """`colocate`: share of the GPU's memory that is vLLM's."""
    max_model_length: int | None = option(None, ge=1, outcome=False)
    """`colocate`: longest prompt and completion together, in tokens; the model's own limit when absent."""
    tensor_parallel_size: int = option(1, ge=1, outcome=False)
    """`colocate`: GPUs that one vLLM is spread over."""
    enable_sleep_mode: bool = option(False, outcome=False)
    """`colocate`: whether vLLM gives its memory back while the model trains."""
    server_base_url: str | None = option(None, outcome=False)
    """`server`: its address, `http://HOST:PORT`; beats the next two."""
    server_host: str = option("0.0.0.0", outcome=False)
    """`server`: its host."""
    server_port: int = option(8000, ge=1, le=65535, outcome=False)
    """`server`: its port."""
    server_timeout: float = option(240.0, gt=0, outcome=False)
    """`server`: seconds to wait for it at the start."""
    group_port: int = option(51216, ge=1, le=65535, outcome=False)
    """`server`: port over which weights are sent."""

    refused: ClassVar[Mapping[str, str]] = {
        "temperature": "is reinforce.temperature",
        "max_tokens": "is reinforce.max_new_tokens",
        "max_completion_length": "is reinforce.max_new_tokens",
        "num_generations": "is reinforce.group_size",
        "model": "is model.id",
        "dtype": "is hardware.dtype",
        "seed": "cannot be set: TRL seeds vLLM by itself; leave it out",
        "stop_token_ids": "are the model's own end tokens and model.stop_tokens",
        "importance_sampling_correction": "is always on: what vLLM samples is never quite the policy; leave it out",
        "importance_sampling_cap": "is an old name of importance_sampling_clip_max",
        **dict.fromkeys(
            ("top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs", "structured_outputs_regex"),
            _WHOLE_POLICY,
        ),
    }
    """Names that contradict other settings, and why."""

    def __post_init__(self) -> None:
        """See that everything that is set has a meaning in this mode."""
        for mode, names in _OF_MODE.items():
            if self.mode is not mode:
                self._check_unset(names, f"is of mode: {mode.name}; set that, or leave it out")
        if self.mode is None:
            self._check_unset(_OF_ANY, "needs to know where vLLM runs: mode: colocate or server")
        if "@" in (self.server_base_url or ""):
            raise ConfigError("server_base_url: takes no user or password; give http://HOST:PORT")
        if self.server_base_url is not None and not names_http_server(self.server_base_url):
            raise ConfigError(f"server_base_url: expected http://HOST:PORT, got {self.server_base_url!r}")
        smallest, largest = self.importance_sampling_clip_min, self.importance_sampling_clip_max
        if smallest is not None and largest is not None and smallest >= largest:
            raise ConfigError(
                f"importance_sampling_clip_min: must be below importance_sampling_clip_max ({largest:g}), "
                f"got {smallest:g}"
            )
        if smallest is None and largest is None and self.importance_sampling_mode.name.endswith("truncate"):
            raise ConfigError("importance_sampling_clip_max: there is nothing to truncate at; give it, or clip_min")

    def _check_unset(self, names: tuple[str, ...], reason: str) -> None:
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in names:
            if getattr(self, name) != defaults[name]:
                raise ConfigError(f"{name}: {reason}")


VLLM_ADDRESS = ("server_base_url", "server_host", "server_port", "group_port")
"""Settings that say where a server is."""

_OF_MODE = {
    VLLMMode.colocate: (
        "model_impl", "gpu_memory_utilization", "max_model_length", "tensor_parallel_size", "enable_sleep_mode",
    ),
    VLLMMode.server: (*VLLM_ADDRESS, "server_timeout"),
}  # fmt: skip
_OF_ANY = (
    "max_divergence",
    "importance_sampling_mode",
    "importance_sampling_clip_max",
    "importance_sampling_clip_min",
)
