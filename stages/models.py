"""Base models and tokenizers, loaded the same way for every stage.

The model's own sampling defaults never leak into ours, and the tokenizer's end token is the one that ends a turn.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from conf.errors import UserError
from stages.chat import render
from stages.contract import Hardware, ModelRef
from stages.identity import model_directory, read_template
from stages.quiet import quiet


def load_tokenizer(ref: ModelRef) -> PreTrainedTokenizerBase:
    """The tokenizer: padding on the left, a pad token, the configured chat template.

    Its `eos_token` is the token that ends a reply in the chat template, which for some models is not the one that
    ends a text (TRL looks there to see whether a completion is finished).

    Raises:
        UserError: The model cannot be found, or its chat template file does not exist.
    """
    quiet()
    tokenizer = original_tokenizer(ref)
    tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(_end_of_turn(ref, tokenizer))
    return tokenizer


def original_tokenizer(ref: ModelRef) -> PreTrainedTokenizerBase:
    """The tokenizer as it came with the model, with the configured chat template."""
    tokenizer = _from_pretrained(AutoTokenizer, ref, "tokenizer")
    if ref.config.chat_template is not None:
        tokenizer.chat_template = read_template(ref.config.chat_template)
    return tokenizer


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Without dropout for a while."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextlib.contextmanager
def unchanged_random_state(device: torch.device) -> Iterator[None]:
    """Leave torch's random state as it is found."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def model_config(ref: ModelRef) -> PretrainedConfig:
    """The model's own configuration.

    Raises:
        UserError: The model cannot be found or reached, or its configuration cannot be used.
    """
    return _from_pretrained(AutoConfig, ref, "config.json")


def _from_pretrained(loader: Any, ref: ModelRef, what: str) -> Any:
    """What a loader of transformers makes of the model's directory, and one clear line where it cannot."""
    directory = model_directory(ref)
    try:
        return loader.from_pretrained(directory, trust_remote_code=ref.config.trust_remote_code)
    except Exception as error:  # bare ones from the tokenizers library, and whatever code of the model's own raises
        if "trust_remote_code" in str(error):
            raise UserError(
                f"model.trust_remote_code: {ref.config.id} needs Python code that comes with it; "
                "read that code, and set model.trust_remote_code=true if it may run here"
            ) from error
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"model.id: the {what} of {ref.config.id} cannot be used: {reason}") from error


def load_base(ref: ModelRef, hardware: Hardware) -> PreTrainedModel:
    """The base model without any adapter: plain weights in `ref.dtype` on the device, in evaluation mode.

    Raises:
        UserError: The model cannot be found, reached or used.
    """
    quiet()
    model = AutoModelForCausalLM.from_pretrained(
        model_directory(ref),
        dtype=getattr(torch, ref.dtype),
        trust_remote_code=ref.config.trust_remote_code,
        use_safetensors=True,
    )
    model.generation_config = neutral_generation_config(ref)
    return model.to(hardware.device).eval()


def neutral_generation_config(ref: ModelRef) -> GenerationConfig:
    """Special tokens and nothing else: no top_k, top_p, repetition penalty or temperature of the model's makers."""
    tokenizer = load_tokenizer(ref)
    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=stop_token_ids(ref, tokenizer),
        pad_token_id=tokenizer.pad_token_id,
    )


def stop_token_ids(ref: ModelRef, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end a reply: the tokenizer's end token, the model's own, and the configured `stop_tokens`.

    Raises:
        UserError: A configured stop token is not one token of this tokenizer.
    """
    ids = [tokenizer.eos_token_id, *_model_end_tokens(ref)]
    for token in ref.config.stop_tokens:
        token_id = tokenizer.get_vocab().get(token)
        if token_id is None:
            special = ", ".join(tokenizer.all_special_tokens[:10])
            raise UserError(f"model.stop_tokens: {token!r} is no token of {ref.config.id}; its special ones: {special}")
        ids.append(token_id)
    return list(dict.fromkeys(token_id for token_id in ids if token_id is not None))


def _model_end_tokens(ref: ModelRef) -> list[int]:
    directory = model_directory(ref)
    source: Any = model_config(ref)
    if (directory / "generation_config.json").is_file():
        source = GenerationConfig.from_pretrained(directory)
    ids = source.eos_token_id
    return [ids] if isinstance(ids, int) else list(ids or [])


def _end_of_turn(ref: ModelRef, tokenizer: PreTrainedTokenizerBase) -> int:
    """The stop token that the chat template puts after a reply; the tokenizer's end token when it puts none."""
    stops = stop_token_ids(ref, tokenizer)
    if not stops:
        raise UserError(f"model.stop_tokens: {ref.config.id} has no end token; name one")
    conversation = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    try:
        ids = render(tokenizer, ref.config, conversation, return_dict=False)
    except UserError:  # Reported by whoever needs a prompt; folding and exporting do not.
        return stops[0]
    return next((token_id for token_id in reversed(ids) if token_id in stops), stops[0])
