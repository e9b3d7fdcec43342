"""The real embedded model: it converts, it answers, and a small update survives the fold to 16 bits."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from stages import recent
from stages.adapters import save_adapter
from stages.chat import prompt_ids
from stages.contract import Hardware, ModelRef
from stages.fold import load_folded
from stages.hardware import prepare
from stages.models import load_base, load_tokenizer, stop_token_ids
from stages.rows import Row

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_threads() -> Iterator[Hardware]:
    hardware = Hardware(threads=2)
    prepare(hardware, seed=0)
    yield hardware


def test_it_is_smollm2(smollm2: ModelRef, two_threads: Hardware) -> None:
    tokenizer, model = load_tokenizer(smollm2), load_base(smollm2, two_threads)
    assert model.num_parameters() == 134_515_008
    assert stop_token_ids(smollm2, tokenizer) == [2]
    text = "2 + 3 = 5\n\n  Ünïcödé 日本 1234"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    ids = torch.tensor([prompt_ids(tokenizer, smollm2.config, Row(prompt="What is the capital of France?"))])
    reply = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(reply[0, ids.shape[1] :])


def additions(tokenizer: Any, count: int, seed: int) -> torch.Tensor:
    """Token ids of sums, all of one length."""
    terms = torch.randint(50, 100, (count, 2), generator=torch.Generator().manual_seed(seed)).tolist()
    return torch.tensor([tokenizer(f"{a} + {b} = {a + b}")["input_ids"] for a, b in terms])


def loss_of(model: Any, ids: torch.Tensor) -> float:
    with torch.no_grad():
        return float(model(input_ids=ids, labels=ids).loss)


def small_adapter(start: ModelRef, hardware: Hardware, directory: Path, ids: torch.Tensor) -> tuple[Any, float, float]:
    """Five steps at 1e-5 (a tenth of the learning rate of reinforce); the loss before and after."""
    model = load_base(start, hardware).float()
    before = loss_of(model, ids)
    adapted = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=1e-5)
    for _ in range(5):
        adapted(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return save_adapter(adapted, start, directory), before, loss_of(adapted, ids)


def test_stochastic_rounding_keeps_what_a_small_update_learned(
    smollm2: ModelRef, two_threads: Hardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share of the gain in loss that is left after the fold to bfloat16, by way of rounding."""
    start, hardware = replace(smollm2, dtype="bfloat16"), two_threads
    ids = additions(load_tokenizer(smollm2), 16, seed=0)
    adapter, before, after = small_adapter(start, hardware, tmp_path / "adapter", ids)
    kept = {}
    for way in ("stochastic", "nearest"):
        if way == "nearest":
            monkeypatch.setattr("stages.fold.stochastic_round", lambda values, dtype, noise: values.to(dtype))
            monkeypatch.setattr("stages.receipt.KEPT_TOLERANCE", 2.0)  # the receipt would refuse it, rightly
            monkeypatch.setattr("stages.receipt.LOGITS_TOLERANCE", {"bfloat16": 1.0})
        recent.forget()  # or the second way gets a copy of what the first one folded
        folded = load_folded(start.with_adapter(adapter), hardware)
        assert folded.receipt is not None
        kept[way] = (before - loss_of(folded.model.float(), ids)) / (before - after)
        print(f"{way}: {kept[way]:.1%} of the gain in loss ({before:.4f} to {after:.4f}) kept; {folded.receipt}")
    assert kept["stochastic"] == pytest.approx(1, abs=0.15)
    assert kept["nearest"] < kept["stochastic"] - 0.3
