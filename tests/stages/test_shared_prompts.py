"""For which models a group's prompt can be computed once; that it changes nothing is in `test_reinforce_objective`."""

import pytest
from transformers import Gemma3TextConfig, LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config

from stages.shared_prompts import supports


@pytest.mark.parametrize(
    ("config", "supported"),
    [
        (LlamaConfig(num_hidden_layers=2), True),
        (Qwen2Config(num_hidden_layers=2), True),
        (Gemma3TextConfig(num_hidden_layers=6), False),  # five of its six layers see a sliding window
        (MistralConfig(num_hidden_layers=2, sliding_window=16), False),
    ],
    ids=lambda value: value.model_type if isinstance(value, PretrainedConfig) else str(value),
)
def test_only_plain_caches_are_shared(config: PretrainedConfig, supported: bool) -> None:
    assert supports(config) is supported
