"""Cost on paper is checked against what torch and the kernel say, and against what the code really does."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM
from trl.kernels import chunked_logprob
from trl.trainer import utils

import conf
from conf.schema import ModelConfig
from conf.training import LoraConfig, PreferenceConfig, PreferenceMethod, ReinforceConfig, SFTConfig
from stages import cost, cost_batches, prefix_tree, recent, sampling, shared_prefix, token_head
from stages.contract import Hardware, ModelRef
from stages.cost import Batch, adapter_parameters, layer_activations, step_memory
from stages.cost_batches import Lengths, counter, longest_rows, micro_batch
from stages.identity import MADE, model_directory
from stages.rows import Row
from stages.shapes import KNOWN, ModelShape, model_shape, read_shape
from stages.training import new_adapter

PUBLISHED = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "google/gemma-3-1b-it": 999_885_952,
}
"""Parameters of hub models, as their makers state them; tied weights once."""

CPU = Hardware(device="cpu", dtype="float32", threads=1)
GPU = Hardware(device="cuda", dtype="bfloat16", threads=1)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_known_shape_has_the_published_number_of_parameters(name: str) -> None:
    assert KNOWN[name].parameters == PUBLISHED[name]


def test_every_model_that_can_be_chosen_is_known() -> None:
    files = (Path(conf.__file__).parent / "model").glob("*.yaml")
    ids = {yaml.safe_load(path.read_text())["id"] for path in files}
    assert {id_ for id_ in ids if not id_.startswith("models:/")} <= KNOWN.keys()


def test_a_shape_is_read_from_the_model_itself(tiny: ModelRef) -> None:
    directory = model_directory(tiny)
    assert model_shape(tiny) == KNOWN[tiny.config.id]
    parameters = AutoModelForCausalLM.from_pretrained(directory).num_parameters()
    assert KNOWN[tiny.config.id].parameters == parameters
    assert read_shape({"model_type": "mamba"}) is None


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 259,
}
DAMAGE: list[dict[str, Any]] = [
    {"num_attention_heads": 0},
    {"num_attention_heads": 65},
    {"vocab_size": "5"},
    {"num_hidden_layers": None},
    {"num_key_value_heads": -1},
    {"head_dim": [16]},
]


@pytest.mark.parametrize("damage", DAMAGE, ids=str)
def test_damaged_sizes_are_no_shape(damage: dict[str, Any]) -> None:
    assert read_shape(LLAMA) is not None
    assert read_shape(LLAMA | damage) is None
    assert read_shape([LLAMA]) is None


def test_a_damaged_tokenizer_counts_like_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    texts = ["", "three words there"]
    assert counter(tmp_path)(texts) == counter(None)(texts) == [0, 6]


def test_a_model_that_is_not_here_is_still_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MADE["tiny:random"], "location", lambda: Path("nowhere"))
    assert model_shape(ModelRef(config=ModelConfig(id="tiny:random"), sha256="")) == KNOWN["tiny:random"]


def test_the_constants_are_those_of_the_code() -> None:
    assert cost.LOGITS == token_head.ELEMENTS
    assert cost.ROOM == sampling.ROOM
    assert (cost.BLOCKS["cpu"], cost.BLOCKS["cuda"]) == (prefix_tree.BLOCK, prefix_tree.GPU_BLOCK)
    assert cost.SHARE == recent.SHARE
    assert (chunked_logprob.TOKEN_CHUNK_SIZE, utils._CHUNKED_LOGPROB_CHUNK_SIZE) == cost.TILE
    assert cost_batches.WORTH_IT == shared_prefix.WORTH_IT


@pytest.mark.parametrize("modules", [["all-linear"], ["q_proj", "v_proj"]])
def test_an_adapter_has_as_many_parameters_as_peft_makes(tiny: ModelRef, modules: list[str]) -> None:
    import peft

    lora = LoraConfig(r=4, target_modules=modules)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(model_directory(tiny)), new_adapter(lora))
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    assert adapter_parameters(KNOWN[tiny.config.id], lora) == trained


@contextmanager
def saved_bytes(model: torch.nn.Module) -> Iterator[dict[int, int]]:
    """Bytes of every piece of memory that is kept for the backward pass; weights are there anyway."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def lora_model(shape: ModelShape, lora: LoraConfig, dtype: torch.dtype) -> Any:
    """A model of this shape with a fresh adapter, in training."""
    import peft
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).to(dtype)
    return peft.get_peft_model(model, new_adapter(lora)).train()


SHAPE = ModelShape(hidden=192, intermediate=512, layers=4, heads=6, key_heads=2, head_dim=32, vocabulary=300)
"""SmolLM2 in small: the same proportions."""


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tree", [True, False])
def test_activations_are_what_torch_keeps(tree: bool, dtype: str, dropout: float) -> None:
    lora = LoraConfig(r=8, dropout=dropout)
    model = lora_model(SHAPE, lora, getattr(torch, dtype))
    sequences, longest = 4, 100
    ids = torch.randint(0, 300, (sequences, longest))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0  # padded, so that there is a mask
    plain = model.get_base_model()
    inputs = {"input_ids": ids, "attention_mask": mask}
    tokens = ids.numel()
    if tree:
        found = prefix_tree.prefix_tree(ids.tolist(), ids.device)
        plain.set_attn_implementation(prefix_tree.ATTENTION)
        positions, four = found.positions[None], torch.ones(1, 1, 1, 1)
        inputs = {"input_ids": found.ids[None], "position_ids": positions, "attention_mask": four, "tree": found}
        tokens = len(found.ids)
    with saved_bytes(model) as kept, torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
        plain.model(**inputs, use_cache=False)
    hardware = Hardware(device="cpu", dtype=dtype, threads=1)
    batch = Batch(tokens=tokens, longest=longest, predicted=tokens, tree=tree)
    expected = SHAPE.layers * tokens * layer_activations(SHAPE, hardware, lora, batch)
    assert expected == pytest.approx(sum(kept.values()), rel=0.05)


def test_a_batch_of_reinforce_shares_its_prompts_on_a_cpu_and_is_padded_on_a_gpu_where_that_is_faster() -> None:
    settings = ReinforceConfig(batch_size=2, group_size=4, max_new_tokens=10, grad_accum=3)
    rows = [Lengths(30), Lengths(20)]
    batch = micro_batch(settings, CPU, rows)
    assert (batch.tokens, batch.longest, batch.predicted, batch.tree) == (30 + 20 + 80, 40, 80, True)
    assert (batch.completions, batch.new_tokens, batch.prompt) == (24, 10, 30)
    long = ReinforceConfig(batch_size=2, group_size=4, max_new_tokens=100)
    batch = micro_batch(long, GPU, rows)
    assert (batch.tokens, batch.tree) == (8 * 130, False)


def test_a_batch_of_pairs_and_rows() -> None:
    pairs = [Lengths(10, (5, 7))]
    dpo = micro_batch(PreferenceConfig(batch_size=2), CPU, pairs)
    assert (dpo.tokens, dpo.predicted, dpo.whole_logits) == (44, 24, False)
    orpo = micro_batch(PreferenceConfig(batch_size=2, method=PreferenceMethod.orpo), CPU, pairs)
    assert (orpo.tokens, orpo.whole_logits) == (4 * 17, True)
    cut = micro_batch(SFTConfig(batch_size=1, max_length=12), CPU, [Lengths(10, (5,))])
    assert (cut.tokens, cut.predicted) == (12, 2)
    assert micro_batch(SFTConfig(batch_size=2, max_length=64), CPU, []).tokens == 128


def test_the_longest_rows_are_counted_by_the_tokenizer(tiny: ModelRef) -> None:
    rows = [Row(prompt="a" * n, response="b") for n in (3, 9, 6)]
    count = counter(model_directory(tiny))
    assert [row.prompt for row in longest_rows(rows, 2, count)] == [9 + 16, 6 + 16]
    assert counter(None)(["a" * 9]) == [3]


def test_what_saves_memory_saves_memory() -> None:
    shape, settings = KNOWN["Qwen/Qwen2.5-7B-Instruct"], SFTConfig()
    batch = micro_batch(settings, GPU, [Lengths(512, (512,))])
    activations = step_memory(shape, GPU, settings, batch).activations
    saving = SFTConfig(gradient_checkpointing=True)
    assert step_memory(shape, GPU, saving, batch).activations < activations / 10
    assert step_memory(shape, GPU, saving, batch, shards=8).weights == shape.parameters * 2 // 8


def test_the_tables_of_the_readme_are_what_the_formulas_say() -> None:
    lines = "\n".join(benchmark("cost").lines()).rstrip()
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert lines in readme, f"python benchmarks/cost.py says:\n{lines}"


@pytest.mark.slow
@pytest.mark.parametrize("case", ["sft-long", "reinforce-short"])
def test_smollm2_needs_about_the_memory_that_is_estimated(case: str) -> None:
    memory = benchmark("memory")
    found = memory.measured(case)
    _, expected = memory.estimate(case, found["tokens"])  # how much rows have in common, nobody knows beforehand
    assert expected.peak == pytest.approx(found["peak"], rel=0.25)
    assert memory.estimate(case)[1].peak > 0.8 * found["peak"]


def benchmark(name: str) -> Any:
    """A module of `benchmarks`, which is no package."""
    path = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
