"""Mistakes with a model: its directory, its chat format, and what is longer than its context."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.flows.mistakes.project import ROWS, Mistake, override

Change = Callable[[Path], object]


def broken(name: str, change: Change, *, says: list[str]) -> Mistake:
    """A mistake in the model's directory."""
    return Mistake(name, tuple(says), change=change)


def without(*names: str) -> Change:
    """Delete files."""
    return lambda model: [(model / name).unlink() for name in names]


def replaced(name: str, text: str) -> Change:
    """Write another text."""
    return lambda model: (model / name).write_text(text)


def edited(name: str, **values: object) -> Change:
    """Change keys of a JSON file."""

    def change(model: Path) -> None:
        (model / name).write_text(json.dumps({**json.loads((model / name).read_text()), **values}))

    return change


def pickled(model: Path) -> None:
    """Weights as pickled files only."""
    (model / "model.safetensors").rename(model / "pytorch_model.bin")


def half(model: Path) -> None:
    """Weights of which half is there."""
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content[: len(content) // 2])


def own_code(model: Path) -> None:
    """A model type that only the code in the directory knows."""
    edited("config.json", model_type="mine", auto_map={"AutoConfig": "mine.MyConfig"})(model)
    (model / "mine.py").write_text("class MyConfig: pass\n")


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
INDEX = '{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}'

DIRECTORY = [
    override("no directory", "model.id=./none", says=["model.id: there is no directory none", "a hub id (owner/name)"]),
    override(
        "no such model of ours", "model.id=tiny:other", says=["model.id: there is no 'tiny:other'", "tiny:random"]
    ),
    broken(
        "no configuration", without("config.json"), says=["model.id: model is no model directory", "no config.json"]
    ),
    broken("broken configuration", replaced("config.json", "{"), says=["model.id: the config.json of model cannot be"]),
    broken(
        "unknown architecture", edited("config.json", model_type="lama"), says=["model.id: the config.json", "lama"]
    ),
    broken("no weights", without("model.safetensors"), says=["model.id: model has no weights", "*.safetensors"]),
    broken("pickled weights", pickled, says=["model.id: model has only pickled weights", "convert", "save_pretrained"]),
    broken("half of the weights", half, says=["model/model.safetensors is no safetensors file", "download it again"]),
    broken("a pointer", replaced("model.safetensors", POINTER), says=["model/model.safetensors", "git lfs pull"]),
    broken("missing shard", replaced("model.safetensors.index.json", INDEX), says=["lacks model-2.safetensors"]),
    broken(
        "no tokenizer", without("tokenizer.json", "tokenizer_config.json"), says=["model.id: model has no tokenizer"]
    ),
    broken(
        "broken tokenizer", replaced("tokenizer.json", "{"), says=["model.id: the tokenizer of model cannot be used"]
    ),
    broken("code of its own", own_code, says=["model.trust_remote_code: model needs", "model.trust_remote_code=true"]),
]

CHAT = [
    broken(
        "no template", without("chat_template.jinja"), says=["model.chat_template: model has no chat template", "set"]
    ),
    override("no such file", "model.chat_template=c.jinja", says=["model.chat_template: 'c.jinja' is neither a Jinja"]),
    override(
        "broken", "model.chat_template='{% for m in x %}'", says=["model.chat_template: ", "not valid Jinja", "line 1"]
    ),
    override("refuses", "model.chat_template='{{ raise_exception(1) }}'", says=["model.chat_template: ", "refuses"]),
    override("writes nothing", "model.chat_template='{# #}'", says=["model.chat_template: ", "writes nothing"]),
    override("stop token", "model.stop_tokens=['<|x|>']", says=["model.stop_tokens: '<|x|>' is no token", "<|end|>"]),
]

LONG = ROWS + "".join(json.dumps({"question": "x" * 5000 + str(n), "answer": "1"}) + "\n" for n in range(20))

LENGTHS = [
    override("rows", "sft.max_length=5000", says=["sft.max_length: must be at most 4096", "got 5000", "tiny:random"]),
    override("replies", "reinforce.max_new_tokens=4096", says=["reinforce.max_new_tokens: must be at most 4095"]),
    override(
        "a suite", "+suite.qa.max_new_tokens=4090", says=["rows.jsonl, line ", "suite.qa.max_new_tokens 4090", "4096"]
    ),
    override("samples", "sft.sample_max_new_tokens=4090", says=["rows.jsonl, line ", "sft.sample_max_new_tokens 4090"]),
    override(
        "no room", "sft.max_length=8", says=["sft.max_length: 8 leaves no room", "rows.jsonl", "shortest prompt has"]
    ),
    Mistake(
        "prompt", ("rows.jsonl, line 6", "the prompt has 50", "the 4096 of the context"), files={"rows.jsonl": LONG}
    ),
    override(
        "no such module", "sft.lora.target_modules=[q_prj]", says=["sft.lora.target_modules: ", "'q_prj'", "q_proj"]
    ),
]
