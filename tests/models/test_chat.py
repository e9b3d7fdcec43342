"""Prompts and replies as token ids, and the tokens that end a reply."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import processors
from transformers import AutoTokenizer

from conf.errors import UserError
from stages.chat import prompt_ids, prompt_string, reply_ids
from stages.contract import Hardware, ModelRef
from stages.models import load_base, load_tokenizer, stop_token_ids
from stages.rows import Row

ROW = Row(system="Be brief.", prompt="What is 41 + 28? Ünïcödé \\ 日本")
TEXT = "<|start|>system\nBe brief.<|end|>\n<|start|>user\nWhat is 41 + 28? Ünïcödé \\ 日本<|end|>\n<|start|>assistant\n"


def edit(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **values}))


def test_the_prompt_is_the_template_and_survives_decoding(tiny: ModelRef) -> None:
    tokenizer = load_tokenizer(tiny)
    assert prompt_string(tokenizer, tiny.config, ROW) == TEXT
    assert tokenizer.decode(prompt_ids(tokenizer, tiny.config, ROW)) == TEXT


def test_a_tokenizer_that_adds_its_own_start_does_not_add_a_second(copy_of_tiny: Any, local: Any) -> None:
    directory = copy_of_tiny()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    start = ("<|start|>", tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing("<|start|> $A", special_tokens=[start])
    tokenizer.save_pretrained(directory)
    ref = local(directory)
    tokenizer = load_tokenizer(ref)
    assert tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id  # it does add one by itself
    ids = prompt_ids(tokenizer, ref.config, Row(prompt="a"))
    assert ids[:2] == [tokenizer.bos_token_id, *tokenizer("u", add_special_tokens=False)["input_ids"]]
    assert reply_ids(tokenizer, ref, "a")[0] != tokenizer.bos_token_id


def test_a_reply_ends_with_the_token_that_ends_a_turn(copy_of_tiny: Any, local: Any) -> None:
    directory = copy_of_tiny()  # like Gemma: the tokenizer's end token ends a text, another one ends a turn
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.eos_token = "<|pad|>"
    tokenizer.save_pretrained(directory)
    edit(directory / "generation_config.json", eos_token_id=[0, 2])
    ref = local(directory)
    tokenizer = load_tokenizer(ref)
    assert reply_ids(tokenizer, ref, "ab")[-1] == 2
    assert len(reply_ids(tokenizer, ref, "ab")) == 3
    assert tokenizer.eos_token == "<|end|>"
    assert sorted(stop_token_ids(ref, tokenizer)) == [0, 2]


def test_configured_stop_tokens(tiny: ModelRef, copy_of_tiny: Any, local: Any) -> None:
    ref = local(copy_of_tiny(), stop_tokens=["<|start|>"])
    assert stop_token_ids(ref, load_tokenizer(ref)) == [2, 1]
    with pytest.raises(UserError, match=r"model\.stop_tokens: '<end>' is no token"):
        load_tokenizer(local(Path(ref.config.id), stop_tokens=["<end>"]))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no system here') }}", "refuses a conversation: no system here"),
        ("missing.jinja", "neither a Jinja template nor a file"),
    ],
)
def test_chat_template_errors(copy_of_tiny: Any, local: Any, template: str, message: str) -> None:
    ref = local(copy_of_tiny(), chat_template=template)
    with pytest.raises(UserError, match=message):
        prompt_ids(load_tokenizer(ref), ref.config, ROW)


def test_a_template_of_ones_own_with_arguments(copy_of_tiny: Any, local: Any, tmp_path: Path) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text("{{ greeting }} {{ messages[-1]['content'] }}<|end|>")
    ref = local(copy_of_tiny(), chat_template=str(path), chat_template_kwargs={"greeting": "Hi:"})
    assert prompt_string(load_tokenizer(ref), ref.config, Row(prompt="a")) == "Hi: a<|end|>"


def test_no_chat_template(copy_of_tiny: Any, local: Any) -> None:
    directory = copy_of_tiny()
    (directory / "chat_template.jinja").unlink()
    ref = local(directory)
    with pytest.raises(UserError, match=r"model\.chat_template: .* has no chat template"):
        prompt_ids(load_tokenizer(ref), ref.config, ROW)


def test_padding_is_on_the_left_with_a_token(copy_of_tiny: Any, local: Any) -> None:
    directory = copy_of_tiny()
    config = json.loads((directory / "tokenizer_config.json").read_text())
    del config["pad_token"]
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(local(directory))
    padded = tokenizer(["a", "abc"], padding=True)["input_ids"]
    assert padded[0] == [tokenizer.pad_token_id] * 2 + tokenizer("a")["input_ids"]


def test_the_makers_sampling_defaults_do_not_leak(
    copy_of_tiny: Callable[..., Path], local: Any, hardware: Hardware, tiny: ModelRef
) -> None:
    directory = copy_of_tiny()
    defaults = {"do_sample": True, "temperature": 0.6, "top_k": 1, "top_p": 0.1, "repetition_penalty": 5.0}
    edit(directory / "generation_config.json", **defaults)
    model, plain = load_base(local(directory), hardware), load_base(tiny, hardware)
    ids = torch.tensor([prompt_ids(load_tokenizer(tiny), tiny.config, ROW)])

    def sample(model: Any, **how: Any) -> list[int]:
        torch.manual_seed(0)
        options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, **how}
        return model.generate(ids, **options)[0].tolist()

    for how in ({"do_sample": True, "top_k": 0}, {"do_sample": False}):
        assert sample(model, **how) == sample(plain, **how)
    greedy = ids[0].tolist()
    for _ in range(12):
        greedy.append(int(plain(torch.tensor([greedy])).logits[0, -1].argmax()))
    reply = greedy[ids.shape[1] :]
    stop = reply.index(2) + 1 if 2 in reply else 12
    assert sample(model, do_sample=False) == greedy[: ids.shape[1] + stop]
