"""What was loaded last is not loaded again, and nobody notices."""

from typing import Any

import pytest
import torch

from stages import fold, recent
from stages.contract import Hardware, ModelRef
from stages.fold import load_folded


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    recent.forget()


@pytest.fixture
def chain(tiny: ModelRef, make_adapter: Any) -> ModelRef:
    first = tiny.with_adapter(make_adapter(tiny, "first"))
    return first.with_adapter(make_adapter(first, "second"))


def loads(monkeypatch: pytest.MonkeyPatch) -> list[ModelRef]:
    """Every time the base is read from disk from now on."""
    read: list[ModelRef] = []
    original = fold.load_base
    monkeypatch.setattr(fold, "load_base", lambda ref, hardware: read.append(ref) or original(ref, hardware))
    return read


def test_steps_that_follow_each_other_read_the_base_once(
    chain: ModelRef, hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    recent.forget()  # the fixture has loaded models, too
    alone = load_folded(chain, hardware)
    recent.forget()
    read = loads(monkeypatch)
    first = chain.base.with_adapter(chain.adapters[0])
    for ref in (chain.base, first, first, chain, chain):
        found = load_folded(ref, hardware)
    assert len(read) == 1
    assert found.receipt == alone.receipt
    for name, weight in alone.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], weight), name


@torch.no_grad()
def test_nobodys_changes_reach_anybody_else(tiny: ModelRef, hardware: Hardware) -> None:
    first = load_folded(tiny, hardware).model
    expected = {name: weight.clone() for name, weight in first.state_dict().items()}
    for _ in range(2):
        model = load_folded(tiny, hardware).model
        for name, weight in model.state_dict().items():
            assert torch.equal(weight, expected[name]), name
        for weight in (*first.parameters(), *model.parameters()):
            weight.zero_()


def test_another_model_another_device_and_a_deleted_adapter_are_noticed(
    chain: ModelRef, hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_folded(chain, hardware)
    read = loads(monkeypatch)
    load_folded(chain, Hardware(threads=hardware.threads + 1))
    load_folded(chain.base, hardware)
    assert len(read) == 2
    load_folded(chain, hardware)
    (chain.adapters[1].path / "adapter_model.safetensors").unlink()
    with pytest.raises(fold.FoldError):
        load_folded(chain, hardware)


def test_a_model_too_large_for_the_machine_is_not_kept(
    tiny: ModelRef, hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = loads(monkeypatch)
    monkeypatch.setattr(recent, "memory", lambda: recent.SHARE * 1000)
    for _ in range(2):
        load_folded(tiny, hardware)
    assert len(read) == 2
