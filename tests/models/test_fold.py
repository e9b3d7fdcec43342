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

from stages.adapters import FoldError, read_adapter
from stages.contract import Adapter, Hardware, ModelRef
from stages.fold import fold_tensor, load_folded
from stages.models import load_base
from stages.receipt import Change, Probe, make_receipt


def merged_by_peft(ref: ModelRef, hardware: Hardware) -> dict[str, torch.Tensor]:
    model: Any = load_base(ref, hardware).float()
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


def test_bfloat16_folds_a_chain_with_one_rounding(chain: ModelRef, hardware: Hardware, make_adapter: Any) -> None:
    start = replace(chain.base, dtype="bfloat16")
    ref = start
    for name in ("a", "b"):
        ref = ref.with_adapter(make_adapter(ref, name))
    folded = load_folded(ref, replace(hardware, dtype="bfloat16"))
    again = load_folded(ref, replace(hardware, dtype="bfloat16"))
    exact = merged_by_peft(ref, replace(hardware, dtype="bfloat16"))
    for name, weight in folded.model.state_dict().items():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, again.model.state_dict()[name])
        # One rounding: within one step of bfloat16 (2**-7 of the value) of the exact sum.
        assert ((weight.float() - exact[name]).abs() <= exact[name].abs() * 2**-7 + 1e-6).all()


def changed(adapter: Adapter, change: Any) -> Adapter:
    """Change an adapter's weights on disk, and record it under its new hash."""
    path = adapter.path / "adapter_model.safetensors"
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


def test_a_wrong_fold_is_caught_by_its_logits(
    tiny: ModelRef, hardware: Hardware, make_adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold that applies an adapter twice (or at the wrong scale) loads, answers, and is wrong."""

    def twice(layer: Any, adapters: Any, name: str, ref: ModelRef) -> torch.Tensor:
        once = fold_tensor(layer, adapters, name, ref)
        return once + (once - layer.get_base_layer().weight)

    ref = tiny.with_adapter(make_adapter(tiny))
    monkeypatch.setattr("stages.fold.fold_tensor", twice)
    with pytest.raises(FoldError, match="does not answer like the adapter"):
        load_folded(ref, hardware)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("scale", "right"), [(1.0, True), (0.0, False), (2.0, False)])
def test_the_check_of_the_logits(tiny: ModelRef, dtype: str, scale: float, right: bool) -> None:
    """A fold must show the effect once: not lost, not doubled, in any number type."""
    generator = torch.Generator().manual_seed(0)
    base, effect = torch.randn(2, 8, 500, generator=generator) * torch.tensor([5.0, 0.5]).view(2, 1, 1)
    probe = Probe(base=base, adapter=base + effect, folded=base + scale * effect)
    ref = replace(tiny, dtype=dtype, adapters=(Adapter(path=Path("adapter"), sha256="0"),))
    if right:
        assert make_receipt(ref, [Change("w", 0.1)], probe)["logits"]["effect_kept"] == pytest.approx(1)
    else:
        with pytest.raises(FoldError):
            make_receipt(ref, [Change("w", 0.1)], probe)
