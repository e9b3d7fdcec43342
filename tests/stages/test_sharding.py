"""FSDP (version 2) as accelerate sets it up, on two CPU processes, where accelerate itself would leave it out."""

from dataclasses import replace
from typing import Any

import pytest

import flows.ranks
from conf.training import LoraConfig, SFTConfig
from flows.ranks import run_ranks
from stages.contract import Hardware, Interrupted
from stages.sft import run_sft
from tests.stages.test_ranks import CLOSE, SHARED, adapter_distance, rows_of, show

FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}


@pytest.mark.slow
def test_divided_weights_are_trained_and_put_together(
    context: Any, hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also over an interruption: a checkpoint has every process's part."""
    monkeypatch.setattr(flows.ranks, "ENTRY", "tests.stages.rank_on_cpu_fsdp")
    cfg = SFTConfig(**{**SHARED, "lora": LoraConfig(r=4)}, batch_size=4)
    one = run_sft(cfg, context("one"))
    expected = rows_of(context)
    ctx = context("two", hardware=replace(hardware, num_processes=2, accelerate=FSDP))
    with pytest.raises(Interrupted):
        run_ranks("sft", cfg, replace(ctx, stopping=lambda: bool(context.logged)))
    *_, checkpoint = sorted((ctx.out_dir / "checkpoints").glob("step-*"))
    assert list(checkpoint.glob("pytorch_model_fsdp*")), sorted(checkpoint.iterdir())
    result = run_ranks("sft", cfg, ctx)
    found = rows_of(context)
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, abs=CLOSE)
    assert adapter_distance(one, result) < CLOSE
    show("sft", one, result, expected, found)
