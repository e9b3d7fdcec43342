"""Training on 4-bit weights: what is quantised, what is not, and that a chain of such stages is what it says."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from conf.errors import UserError
from conf.hardware import HardwareConfig
from conf.rewards import load_rewards
from conf.training import LoraConfig, PreferenceConfig, PreferenceMethod, ReinforceConfig, SFTConfig
from rewards.scoring import RewardSet
from stages import recent
from stages.contract import Hardware, Interrupted, ModelRef, StageContext, StageResult
from stages.export import export
from stages.fold import load_folded
from stages.grpo import OnPolicyTrainer
from stages.hardware import check_4bit, prepare
from stages.identity import model_directory
from stages.models import load_base, load_tokenizer
from stages.preference import run_preference
from stages.quantise import load_start, quantise
from stages.receipt import probe_ids, probe_logits
from stages.reinforce import reinforce_trainer, run_reinforce
from stages.rows import Row, read_rows, write_rows
from stages.sft import run_sft
from stages.training import adapter_hash

bitsandbytes = pytest.importorskip("bitsandbytes")

FAST: dict[str, Any] = {"batch_size": 4, "max_steps": 2, "learning_rate": 1e-2, "n_samples": 1, "save_steps": 1}
LOWER_CASE = {"lower": {"type": "regex", "pattern": "[a-z]"}}
PAIRS = [Row(prompt=f"{a}+{a}", chosen=str(2 * a), rejected="no " * (1 + a % 3)) for a in range(12)]
REPEATED = [5, 9, 60, 61, 62, 63, 64, 65]

Stage = Callable[[StageContext], StageResult]


@pytest.fixture
def in_4bit(hardware: Hardware) -> Hardware:
    return replace(hardware, load_in_4bit=True)


def reinforce(**settings: Any) -> ReinforceConfig:
    return ReinforceConfig(**{**FAST, "group_size": 4, "max_new_tokens": 4, **settings})


@pytest.fixture(
    params=["reinforce", *(pytest.param(name, marks=pytest.mark.slow) for name in ("plain reinforce", "dpo", "orpo"))]
)
def second(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Stage, dict[str, Any]]:
    """A stage to follow sft, and what its context has besides."""
    name: str = request.param
    if name.endswith("reinforce"):
        cfg = reinforce(shared_prefix=name == "reinforce")
        return lambda ctx: run_reinforce(cfg, ctx), {"rewards": load_rewards(LOWER_CASE)}
    pairs = {split: write_rows(tmp_path / f"pairs-{split}.jsonl", PAIRS) for split in ("train", "select")}
    settings = PreferenceConfig(**FAST, method=PreferenceMethod[name])
    return lambda ctx: run_preference(settings, ctx), {"data": pairs}


def test_linear_layers_are_quantised_and_nothing_else(tiny: ModelRef, in_4bit: Hardware) -> None:
    plain, quantised = load_base(tiny, in_4bit), load_start(tiny, in_4bit)
    for name, weight in plain.named_parameters():
        found = quantised.get_parameter(name)
        if "proj" in name:
            assert found.dtype == torch.uint8 and found.numel() == weight.numel() / 2, name
            around = bitsandbytes.functional.dequantize_4bit(found.data, found.quant_state)
            assert found.quant_state.nested and found.quant_state.quant_type == "nf4"
            assert 0 < (around - weight).norm() < 0.15 * weight.norm(), name
        else:
            torch.testing.assert_close(found, weight, rtol=0, atol=0, msg=name)
    assert type(quantised.get_output_embeddings()) is torch.nn.Linear


@torch.no_grad()
def test_it_answers_like_the_model_that_transformers_loads_in_4_bits(tiny: ModelRef, in_4bit: Hardware) -> None:
    settings = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    theirs = AutoModelForCausalLM.from_pretrained(
        model_directory(tiny),
        dtype=torch.float32,
        quantization_config=BitsAndBytesConfig(**settings, bnb_4bit_compute_dtype=torch.float32),
    )
    for layer in theirs.modules():
        if isinstance(layer, bitsandbytes.nn.Linear4bit):
            layer.support_avx512bf16_for_cpu = False
    ids = torch.tensor([REPEATED])
    torch.testing.assert_close(load_start(tiny, in_4bit)(ids).logits, theirs(ids).logits, rtol=0, atol=0)


def test_the_same_seed_makes_the_same_adapter_in_4_bits(context: Any, in_4bit: Hardware, hardware: Hardware) -> None:
    starts = []
    for where in (in_4bit, hardware):
        prepare(where, 0)
        ctx = context(str(where.load_in_4bit), hardware=where, rewards=load_rewards(LOWER_CASE))
        trainer = trainer_of(ctx, reinforce())
        starts.append(adapter_hash(trainer.model))
        assert {p.dtype for p in trainer.model.parameters() if p.requires_grad} == {torch.float32}
    assert starts[0] == starts[1]


def test_gradients_are_those_of_the_dequantised_weights_also_after_answering(
    context: Any, tiny: ModelRef, in_4bit: Hardware
) -> None:
    """The kernels that bitsandbytes has for answering on a CPU would leave nothing to differentiate."""
    found = []
    for dequantised in (False, True):
        prepare(in_4bit, 0)
        ctx = context(f"dequantised {dequantised}", hardware=in_4bit, rewards=load_rewards(LOWER_CASE))
        model = trainer_of(ctx, reinforce(shared_prefix=False)).model
        away_from_the_start(model)
        if dequantised:
            dequantise(model)
        ids = torch.tensor([REPEATED])
        with torch.no_grad():
            model.eval()(input_ids=ids)
        loss = model.train()(input_ids=ids, labels=ids).loss
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters() if p.requires_grad)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
    assert max(gradient.abs().max() for gradient in found[0][1:]) > 1e-3


def dequantise(model: torch.nn.Module) -> None:
    """Plain linear layers in place of 4-bit ones."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, bitsandbytes.nn.Linear4bit):
            plain = torch.nn.Linear(layer.in_features, layer.out_features, bias=False)
            weight = bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
            plain.weight = torch.nn.Parameter(weight, requires_grad=False)
            model.set_submodule(name, plain)


def away_from_the_start(model: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.copy_(0.1 * torch.randn(weight.shape, generator=generator))


def trainer_of(ctx: StageContext, cfg: ReinforceConfig) -> OnPolicyTrainer:
    rows = read_rows(ctx.data["train"])
    return reinforce_trainer(cfg, ctx, load_tokenizer(ctx.start), rows, RewardSet(ctx.rewards))


@pytest.mark.parametrize("shared", [True, False])
def test_what_is_sampled_is_what_is_trained(context: Any, in_4bit: Hardware, shared: bool) -> None:
    """The sampler's log-probabilities of its own samples are those that the training pass computes."""
    ctx = context("reinforce", hardware=in_4bit, rewards=load_rewards(LOWER_CASE))
    trainer = trainer_of(ctx, reinforce(shared_prefix=shared, max_new_tokens=6))
    away_from_the_start(trainer.model)
    batch = trainer._generate_and_score_completions([{"prompt": row} for row in (0, 1) for _ in range(4)])
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    length = batch["completion_ids"].shape[1]
    trained, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, length)
    with torch.no_grad(), trainer.policy() as policy:
        logits = policy(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    sampled = logits[:, -length - 1 : -1].log_softmax(-1).gather(2, batch["completion_ids"][..., None])[..., 0]
    kept = batch["completion_mask"].bool()
    torch.testing.assert_close(trained[kept], sampled[kept], rtol=0, atol=1e-4)

    plain = load_folded(ctx.start, ctx.hardware).model
    with torch.no_grad():
        logits = plain(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    start = logits[:, -length - 1 : -1].log_softmax(-1).gather(2, batch["completion_ids"][..., None])[..., 0]
    reference = batch["ref_per_token_logps"]
    assert 1e-3 < (reference - start)[kept].abs().mean() < 0.5, "the reference is the quantised start"
    assert (reference - trained)[kept].abs().mean() > 1e-2, "which is not the policy"


def test_a_chain_of_two_stages(
    context: Any, second: tuple[Stage, dict[str, Any]], in_4bit: Hardware, hardware: Hardware, tmp_path: Path
) -> None:
    first = run_sft(SFTConfig(**FAST), context("first", hardware=in_4bit)).model
    run, inputs = second
    ctx = context("second", hardware=in_4bit, models={"start": first}, **inputs)
    result = run(ctx)

    assert result.model.adapters[0] == first.adapters[0] and len(result.model.adapters) == 2
    lineage = json.loads((ctx.out_dir / "adapter" / "lineage.json").read_text())
    assert lineage["start"] == first.identity and lineage["adapters"] == [first.adapters[0].sha256]

    recent.forget()
    folded = load_folded(result.model, hardware)
    receipt = dict(result.receipt or {})
    gap, _, seeds = (receipt.pop(name) for name in ("quantisation", "initial_adapter", "seeds"))
    assert receipt == folded.receipt, "of full precision"
    assert seeds == [ctx.seed]
    assert json.loads((ctx.out_dir / "receipt.json").read_text())["quantisation"] == gap
    ids = probe_ids(result.model)
    full = probe_logits(folded.model, ids)
    quantise(folded.model)
    apart = (probe_logits(folded.model, ids) - full).abs()
    assert gap["quantised_vs_folded"] == {"largest": float(apart.max()), "mean": float(apart.mean())}
    assert 0 < gap["trained_vs_folded"]["mean"] < gap["trained_vs_folded"]["largest"] < 5

    out = export(result.model, hardware, tmp_path / "exported")
    model = AutoModelForCausalLM.from_pretrained(out)
    assert all(weight.dtype == torch.float32 for weight in model.parameters())
    torch.testing.assert_close(probe_logits(model, ids), full, rtol=0, atol=1e-5)


def test_the_same_bytes_twice_and_after_an_interruption(
    context: Any, second: tuple[Stage, dict[str, Any]], in_4bit: Hardware
) -> None:
    run, inputs = second
    whole = run(context("whole", hardware=in_4bit, **inputs))
    ctx = context("parts", hardware=in_4bit, **inputs)
    context.logged.clear()
    with pytest.raises(Interrupted):
        run(replace(ctx, stopping=lambda: True))  # after one step
    again = run(ctx)
    assert [row["step"] for row in context.logged] == [1, 2]
    assert again.model.adapters[0].sha256 == whole.model.adapters[0].sha256
    assert again.receipt == whole.receipt


def test_half_precision(context: Any, tiny: ModelRef) -> None:
    """The fold rounds to bfloat16 as ever, and layers compute in it."""
    hardware = Hardware(dtype="bfloat16", load_in_4bit=True)
    start = replace(tiny, dtype="bfloat16")
    model = load_start(start, hardware)
    assert {layer.compute_dtype for layer in model.modules() if hasattr(layer, "compute_dtype")} == {torch.bfloat16}
    ctx = context("half", hardware=hardware, models={"start": start}, rewards=load_rewards(LOWER_CASE))
    result = run_reinforce(reinforce(lora=LoraConfig(r=4)), ctx)
    assert result.receipt and result.receipt["dtype"] == "bfloat16" and result.receipt["quantisation"]["type"] == "nf4"


def test_without_bitsandbytes_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    check_4bit(HardwareConfig(load_in_4bit=True))
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r'hardware\.load_in_4bit: .*pip install "ratchet\[4bit\]"'):
        check_4bit(HardwareConfig(load_in_4bit=True))
    check_4bit(HardwareConfig())


@pytest.mark.slow
def test_a_chain_on_the_real_model(context: Any, smollm2: ModelRef, tmp_path: Path) -> None:
    hardware = Hardware(threads=2, load_in_4bit=True)
    rows = [Row(prompt=f"What is {a} + {a + 7}?", response=str(2 * a + 7), reference=2 * a + 7) for a in range(10, 34)]
    data = {split: write_rows(tmp_path / f"{split}.jsonl", rows) for split in ("train", "select")}
    shared = {"hardware": hardware, "data": data}
    sft = SFTConfig(max_steps=4, batch_size=8, learning_rate=5e-4, n_samples=1)
    first = run_sft(sft, context("first", models={"start": smollm2}, **shared))
    rewards = load_rewards({"right": {"type": "numeric"}, "short": {"type": "length", "max_chars": 4}})
    ctx = context("second", models={"start": first.model}, rewards=rewards, **shared)
    result = run_reinforce(reinforce(batch_size=4, learning_rate=1e-4, max_new_tokens=6), ctx)
    for receipt in (first.receipt or {}, result.receipt or {}):
        logits, gap = receipt["logits"], receipt["quantisation"]
        print(json.dumps({"logits": logits, "quantisation": gap}))
        assert logits["folded_vs_adapter"] <= logits["allowed"]
        assert 0 < gap["quantised_vs_folded"]["mean"] < gap["quantised_vs_folded"]["largest"]
    assert first.metrics["loss"] < 0.8 * context.logged[0]["loss"]
    recent.forget()
    assert load_folded(result.model, replace(hardware, load_in_4bit=False)).receipt
