"""Small random models of several families: plain and sliding attention, logits scaled in different ways."""

from transformers import (
    CohereConfig,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen3Config,
)

SMALL = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FAMILIES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SMALL),
    "qwen3": Qwen3Config(**SMALL, head_dim=8),
    "gemma3": Gemma3TextConfig(
        **SMALL, head_dim=8, sliding_window=4, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    ),
    "mistral": MistralConfig(**SMALL, sliding_window=5),
    "granite": GraniteConfig(**SMALL, logits_scaling=4.0),
    "cohere": CohereConfig(**SMALL, logit_scale=0.25),
}
