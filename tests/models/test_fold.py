"""The fold: equal to peft's own merge, proven by its receipt, and refused when anything does not belong together."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from stages import recent
from stages.adapters import WEIGHTS_FILE, FoldError, read_adapter
from stages.contract import Adapter, Hardware, ModelRef
from stages.fold import adapter_delta, load_folded
from stages.models import load_base


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    """Every test folds for itself."""
    recent.forget()


def merged_by_peft(ref: ModelRef, hardware: Hardware) -> dict[str, torch.Tensor]:
    model: Any = load_base(ref, hardware)
    for adapter in ref.adapters:
        model = PeftModel.from_pretrained(model, adapter.path).merge_and_unload()
        if hasattr(model, "peft_config"):
            del model.peft_config
    return dict(model.state_dict())


@pytest.mark.parametrize(
    "lora",
    [{}, {"lora_alpha": 3}, {"use_rslora": True, "r": 8}, {"target_modules": ["q_proj", "down_proj"]}],
    ids=["plain", "alpha", "rank-stabilised", "some modules"],
)
def test_equals_pefts_merge(tiny: ModelRef, hardware: Hardware, make_adapter: Any, lora: dict[str, Any]) -> None:
    ref = tiny.with_adapter(make_adapter(tiny, **lora))
    folded = load_folded(ref, hardware).model.state_dict()
    expected = merged_by_peft(ref, hardware)
    assert folded.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(folded[name], weight, rtol=0, atol=1e-6)


@pytest.fixture
def chain(tiny: ModelRef, make_adapter: Any) -> ModelRef:
    """The tiny model with three adapters, each on the folded model before it."""
    ref = tiny
    for name in ("first", "second", "third"):
        ref = ref.with_adapter(make_adapter(ref, name))
    return ref


def test_a_chain_of_three_equals_three_merges(chain: ModelRef, hardware: Hardware) -> None:
    folded = load_folded(chain, hardware)
    for name, weight in merged_by_peft(chain, hardware).items():
        torch.testing.assert_close(folded.model.state_dict()[name], weight, rtol=0, atol=1e-6)
    assert not hasattr(folded.model, "peft_config")


def test_the_order_of_a_chain_is_part_of_its_identity(chain: ModelRef) -> None:
    swapped = replace(chain, adapters=(chain.adapters[1], chain.adapters[0], chain.adapters[2]))
    assert swapped.identity != chain.identity


def test_the_receipt_says_what_was_folded(chain: ModelRef, hardware: Hardware) -> None:
    receipt = load_folded(chain, hardware).receipt
    assert receipt is not None
    assert receipt["identity"] == chain.identity and receipt["base"] == chain.sha256
    assert receipt["adapters"] == [adapter.sha256 for adapter in chain.adapters]
    assert receipt["tensors"]["changed"] == receipt["tensors"]["adapted"] == 14
    logits = receipt["logits"]
    assert logits["folded_vs_adapter"] < 1e-4 < logits["adapter_vs_base"]
    assert logits["effect_kept"] == pytest.approx(1, abs=1e-3)
    json.dumps(receipt)


def test_no_adapter_no_receipt(tiny: ModelRef, hardware: Hardware) -> None:
    assert load_folded(tiny, hardware).receipt is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_round_the_exact_sum_once(tiny: ModelRef, hardware: Hardware, make_adapter: Any, dtype: str) -> None:
    start = replace(tiny, dtype=dtype)
    ref = start
    for name in ("first", "second", "third"):
        ref = ref.with_adapter(make_adapter(ref, name))
    exact = {name: weight.double() for name, weight in load_base(start, hardware).state_dict().items()}
    for adapter in ref.adapters:
        weights = {name: weight.double() for name, weight in load_file(adapter.path / WEIGHTS_FILE).items()}
        for name in weights:
            if "lora_A" in name:
                module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                exact[f"{module}.weight"] += 8 / 4 * weights[name.replace("lora_A", "lora_B")] @ weights[name]
    folded = load_folded(ref, hardware).model.state_dict()
    recent.forget()
    again = load_folded(ref, hardware).model.state_dict()
    step = torch.finfo(getattr(torch, dtype)).eps
    for name, weight in folded.items():
        assert torch.equal(weight, again[name])
        assert ((weight.double() - exact[name]).abs() <= exact[name].abs() * step + 2e-7).all()


def changed(adapter: Adapter, change: Any) -> Adapter:
    """Change an adapter's weights on disk, and record it under its new hash."""
    path = adapter.path / WEIGHTS_FILE
    weights = {name: change(name, weight) for name, weight in load_file(path).items()}
    save_file({name: weight.contiguous() for name, weight in weights.items()}, path, metadata={"format": "pt"})
    return read_adapter(adapter.path)


def test_an_adapter_that_changes_nothing_is_refused(tiny: ModelRef, hardware: Hardware, make_adapter: Any) -> None:
    idle = changed(make_adapter(tiny), lambda name, weight: weight * ("lora_B" not in name))
    with pytest.raises(FoldError, match="changes nothing: none of its 14 tensors differ"):
        load_folded(tiny.with_adapter(idle), hardware)


def test_a_missing_adapter_is_refused(chain: ModelRef, hardware: Hardware) -> None:
    shutil.rmtree(chain.adapters[1].path)
    with pytest.raises(FoldError, match=r"second is missing: there is no adapter_model.safetensors"):
        load_folded(chain, hardware)


def test_a_changed_adapter_is_refused(chain: ModelRef, hardware: Hardware) -> None:
    changed(chain.adapters[0], lambda _, weight: weight * 1.01)
    with pytest.raises(FoldError, match="first has changed: its hash is"):
        load_folded(chain, hardware)


def test_an_adapter_of_another_base_is_refused(
    tiny: ModelRef, hardware: Hardware, make_adapter: Any, copy_of_tiny: Any, local: Any
) -> None:
    directory: Path = copy_of_tiny()
    weights = load_file(directory / "model.safetensors")
    save_file(
        {name: weight * 1.01 for name, weight in weights.items()}, directory / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(FoldError, match="belongs on another base: tiny:random"):
        load_folded(local(directory).with_adapter(make_adapter(tiny)), hardware)


def test_a_later_adapter_is_refused_on_the_plain_base(chain: ModelRef, hardware: Hardware) -> None:
    with pytest.raises(FoldError, match="belongs on other folded weights: it was trained after 2 adapters"):
        load_folded(chain.base.with_adapter(chain.adapters[2]), hardware)
    config = json.loads((chain.adapters[2].path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"].startswith("ratchet-folded:")


def test_an_adapter_without_lineage_is_refused(tiny: ModelRef, hardware: Hardware, make_adapter: Any) -> None:
    adapter = make_adapter(tiny)
    (adapter.path / "lineage.json").unlink()
    with pytest.raises(FoldError, match="has no lineage"):
        load_folded(tiny.with_adapter(adapter), hardware)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"use_dora": True}, "use_dora is True"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"modules_to_save": ["norm"]}, r"modules_to_save is \['norm'\]"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "shares its weight with another module"),
    ],
)
def test_adapters_that_cannot_be_folded_are_refused(
    tiny: ModelRef, hardware: Hardware, make_adapter: Any, lora: dict[str, Any], message: str
) -> None:
    with pytest.raises(FoldError, match=message):
        load_folded(tiny.with_adapter(make_adapter(tiny, **lora)), hardware)


def test_an_adapter_of_another_shape_is_refused(
    tiny: ModelRef, hardware: Hardware, make_adapter: Any, copy_of_tiny: Any
) -> None:
    adapter = changed(make_adapter(tiny), lambda name, weight: weight[:, :-1] if "lora_A" in name else weight)
    with pytest.raises(FoldError, match="does not fit the model"):
        load_folded(tiny.with_adapter(adapter), hardware)
    partial = make_adapter(tiny, "partial")
    path = partial.path / WEIGHTS_FILE
    save_file(dict(list(load_file(path).items())[2:]), path, metadata={"format": "pt"})
    with pytest.raises(FoldError, match="it has 26 tensors, not 28"):
        load_folded(tiny.with_adapter(read_adapter(partial.path)), hardware)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("factor", [0.0, 0.5, 1.5, 2.0, -1.0, float("nan")])
def test_a_wrong_fold_is_caught(
    tiny: ModelRef,
    hardware: Hardware,
    make_adapter: Any,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    factor: float,
) -> None:
    """A fold at the wrong scale loads, answers, and is wrong; the right one passes."""
    start = replace(tiny, dtype=dtype)
    ref = start.with_adapter(make_adapter(start))
    assert load_folded(ref, hardware).receipt is not None
    recent.forget()
    monkeypatch.setattr("stages.fold.adapter_delta", lambda layer, name: adapter_delta(layer, name) * factor)
    with pytest.raises(FoldError, match=r"changes nothing|does not answer like the adapter|infinite or not a number"):
        load_folded(ref, hardware)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_update_lost_in_rounding_is_caught(
    tiny: ModelRef, hardware: Hardware, make_adapter: Any, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Too small for the logits to tell; the weights do."""
    start = replace(tiny, dtype=dtype)
    ref = start.with_adapter(make_adapter(start, std=1e-4 if dtype == "bfloat16" else 1e-5))
    receipt = load_folded(ref, hardware).receipt
    assert receipt is not None
    assert receipt["tensors"]["update_kept"] == pytest.approx(1, abs=0.05)
    assert receipt["logits"]["adapter_vs_base"] < receipt["logits"]["allowed"]
    recent.forget()
    monkeypatch.setattr("stages.fold.stochastic_round", lambda values, dtype, noise: values.to(dtype))
    with pytest.raises(FoldError, match="lost its update"):
        load_folded(ref, hardware)


def test_a_tensor_no_further_adapter_touches_stays_bit_for_bit(
    tiny: ModelRef, hardware: Hardware, make_adapter: Any
) -> None:
    start = replace(tiny, dtype="bfloat16")
    first = start.with_adapter(make_adapter(start, "first"))
    second = first.with_adapter(make_adapter(first, "second", target_modules=["q_proj"]))
    before, after = (load_folded(ref, hardware).model.state_dict() for ref in (first, second))
    differ = {name for name in before if not torch.equal(before[name], after[name])}
    assert differ == {name for name in before if "q_proj" in name}


def test_folding_leaves_torchs_generator_alone(tiny: ModelRef, hardware: Hardware, make_adapter: Any) -> None:
    ref = tiny.with_adapter(make_adapter(tiny))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    load_folded(ref, hardware)
    assert torch.equal(torch.rand(3), expected)
