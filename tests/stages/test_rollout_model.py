"""The folded copy that completions are sampled from, and the packed weights it is made of."""

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, PretrainedConfig, Qwen2Config

from stages.contract import Hardware, ModelRef
from stages.models import load_base
from stages.packed import pack
from stages.packed_decoder import PackedDecoderLayer
from stages.packed_linear import PackedLinear, can_pack
from stages.rollout_model import RolloutModel
from tests.stages.families import FAMILIES, SMALL

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])


@pytest.fixture
def pair(tiny: ModelRef, hardware: Hardware) -> tuple[RolloutModel, Any]:
    plain = load_base(tiny, hardware)
    rollout = RolloutModel(plain)
    lora = LoraConfig(r=4, lora_alpha=32, use_rslora=True, lora_dropout=0.5, target_modules="all-linear")
    return rollout, get_peft_model(plain, lora)


@torch.no_grad()
def step(adapted: Any) -> None:
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            weight.add_(torch.randn_like(weight) * 0.05)


@torch.no_grad()
def test_it_follows_every_step_and_the_trained_weights_stay_as_they_are(pair: tuple[RolloutModel, Any]) -> None:
    rollout, adapted = pair
    base = {name: weight.clone() for name, weight in adapted.named_parameters() if "lora_" not in name}
    adapted.train()
    for _ in range(20):
        step(adapted)
        rollout.refresh(adapted)
    adapted.eval()
    expected, found = adapted(input_ids=IDS).logits, rollout.plain(input_ids=IDS).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    with adapted.disable_adapter():
        assert (adapted(input_ids=IDS).logits - expected).abs().max() > 0.1, "the adapter has an effect"
    for name, weight in adapted.named_parameters():
        if "lora_" not in name:
            assert torch.equal(weight, base[name])
    assert not any(hasattr(layer, "lora_A") for layer in rollout.plain.modules())


def test_what_is_not_adapted_is_shared(pair: tuple[RolloutModel, Any]) -> None:
    rollout, adapted = pair
    rollout.refresh(adapted)
    assert rollout.plain.get_input_embeddings().weight is adapted.get_input_embeddings().weight


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_is_a_linear_layer(bias: bool) -> None:
    layer = torch.nn.Linear(24, 10, bias=bias)
    packed = PackedLinear([layer], ["layer"])
    for shape in ((1, 24), (7, 24), (2, 3, 24)):
        inputs = torch.randn(shape)
        torch.testing.assert_close(packed(inputs), layer(inputs))
    packed.pack([torch.nn.Linear(24, 10).weight])
    assert not torch.allclose(packed(inputs), layer(inputs))


@torch.no_grad()
def test_a_packed_model_answers_the_same_and_keeps_its_embeddings(tiny: ModelRef, hardware: Hardware) -> None:
    model = load_base(tiny, hardware)
    expected, embeddings = model(input_ids=IDS).logits, model.get_input_embeddings().weight
    assert pack(pack(model)) is model
    assert not any(type(layer) is torch.nn.Linear for layer in model.modules())
    assert model.get_input_embeddings().weight is embeddings
    torch.testing.assert_close(model(input_ids=IDS).logits, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    ("config", "replaced"),
    [(FAMILIES["llama"], True), (Qwen2Config(**SMALL, head_dim=16), True), (FAMILIES["granite"], False)],
    ids=lambda value: getattr(value, "model_type", str(value)),
)
def test_decoder_layers_of_a_known_kind_are_replaced_and_answer_the_same(
    config: PretrainedConfig, replaced: bool
) -> None:
    """With padding and a cache, and biases and norms that are not what they start as."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, weight in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            weight.add_(torch.randn_like(weight))
    mask = torch.ones(2, 5, dtype=torch.long)
    mask[0, :2] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)

    def answers() -> torch.Tensor:
        first = model(IDS, attention_mask=mask[:, :4], position_ids=positions[:, :4], use_cache=True)
        token = {"attention_mask": mask, "position_ids": positions[:, 4:]}
        second = model(IDS[:, :1], **token, cache=first.cache)
        return torch.cat([first.logits[:, -1:], second.logits], 1)

    expected = answers()
    layers = pack(model).model.layers
    assert all(isinstance(layer, PackedDecoderLayer) is replaced for layer in layers)
    assert not any(type(layer) is torch.nn.Linear for layer in model.modules())
    torch.testing.assert_close(answers(), expected, rtol=1e-5, atol=1e-5)


def test_only_float32_on_a_cpu_is_packed() -> None:
    layer = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    assert can_pack(torch.nn.Linear(2, 2)) and not can_pack(layer)
    assert pack(torch.nn.Sequential(layer))[0] is layer
