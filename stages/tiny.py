"""A tiny random model with its own tokenizer, made on the spot: for tests and for a first look at the plumbing.

It speaks printable text of every kind (byte by byte) and has the chat format of its big brothers. It knows nothing.
"""

import hashlib
from pathlib import Path
from typing import Any

from stages.cache import cache_dir, make_once

ID = "tiny:random"
VERSION = 1
"""Changes whenever the model would be made differently."""

SIZE = 2**20
"""Bytes of the model with its tokenizer, rounded up."""

_SPECIAL = ("<|pad|>", "<|start|>", "<|end|>")
_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def identity() -> str:
    """Hash of everything that determines the model."""
    return hashlib.sha256(f"tiny {VERSION}".encode()).hexdigest()


def directory() -> Path:
    """The model as a directory that transformers loads, made on first use (a second)."""
    return make_once(location(), _make)


def location() -> Path:
    """Where the model is, or will be."""
    return cache_dir() / f"tiny-{identity()[:16]}"


def _make(target: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer()
    tokenizer.save_pretrained(target)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.1,  # Large enough that samples differ and small updates show in the logits.
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(target)


def _tokenizer() -> Any:
    """A byte-level tokenizer without merges: one token per byte, and three special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*_SPECIAL, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    pad, start, end = _SPECIAL
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=pad, bos_token=start, eos_token=end)
    tokenizer.chat_template = _TEMPLATE
    return tokenizer
