"""Two processes train what one does: the same losses, the same adapter, each reward once, whatever dies in between."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

import flows.ranks
from conf.rewards import load_rewards
from conf.training import (
    DifficultyConfig,
    Keep,
    LoraConfig,
    PreferenceConfig,
    PreferenceMethod,
    ReinforceConfig,
    SFTConfig,
)
from flows.ranks import RankError, run_ranks
from rewards.contract import RewardError
from stages.contract import Hardware, Interrupted, StageContext, StageResult
from stages.groups import Group
from stages.grpo import OnPolicyTrainer
from stages.order import wrapped_order
from stages.preference import run_preference
from stages.ranks import seed_of
from stages.reinforce import run_reinforce
from stages.rows import Row, write_rows
from stages.sft import run_sft

STEPS = 4
SHARED: dict[str, Any] = {
    "max_steps": STEPS,
    "learning_rate": 1e-3,
    "save_steps": 1,
    "n_samples": 2,
    "sample_max_new_tokens": 2,
    "lora": LoraConfig(r=4),
}
CLOSE = 1e-4
"""How far two processes may be from one: sums of float32 in another order."""

RUN: dict[str, Callable[[Any, StageContext], StageResult]] = {
    "sft": run_sft,
    "preference": run_preference,
    "reinforce": run_reinforce,
}
PAIRS = [Row(prompt=f"{a}+{a}", chosen=str(2 * a) * (1 + a % 4), rejected="no " * (1 + a % 3)) for a in range(20)]
LOWER_CASE = load_rewards({"lower": {"type": "regex", "pattern": "[a-z]"}})


@pytest.fixture
def two(hardware: Hardware) -> Hardware:
    return replace(hardware, num_processes=2)


@pytest.fixture
def pairs(tmp_path: Path) -> dict[str, Path]:
    return {split: write_rows(tmp_path / f"pairs-{split}.jsonl", PAIRS) for split in ("train", "select")}


def rows_of(context: Any) -> list[dict[str, float]]:
    """The progress rows so far, without their clock; further ones are counted anew."""
    rows = [{name: value for name, value in row.items() if name != "time"} for row in context.logged]
    context.logged.clear()
    return rows


def check_same(context: Any, two: Hardware, stage: str, cfg: Any, **inputs: Any) -> None:
    """Both ways of computing a stage come to the same numbers; and two processes leave what one does, once."""
    one = RUN[stage](cfg, context("one", **inputs))
    expected = rows_of(context)
    ctx = context("two", hardware=two, **inputs)
    result = run_ranks(stage, cfg, ctx)
    found = rows_of(context)
    assert [row["step"] for row in found] == list(range(1, STEPS + 1))
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, abs=CLOSE)
    assert adapter_distance(one, result) < CLOSE
    assert result.metrics == pytest.approx(one.metrics, abs=CLOSE)
    assert result.receipt is not None and result.receipt["initial_adapter"] == (one.receipt or {})["initial_adapter"]
    assert result.receipt["seeds"] == [0, seed_of(1, 0)]
    assert len((ctx.out_dir / "samples.jsonl").read_text().splitlines()) == cfg.n_samples
    show(stage, one, result, expected, found)


def adapter_distance(one: StageResult, other: StageResult) -> float:
    """The largest difference of two adapters' weights."""
    weights, others = (load_file(each.model.adapters[0].path / "adapter_model.safetensors") for each in (one, other))
    assert weights.keys() == others.keys()
    return max(float((weights[name] - others[name]).abs().max()) for name in weights)


def show(stage: str, one: StageResult, other: StageResult, rows: Sequence[Any], others: Sequence[Any]) -> None:
    """Print by how much the two differ."""
    far = {
        name: max(abs(row[name] - other[name]) for row, other in zip(rows, others, strict=True) if name in row)
        for name in {name for row in rows for name in row}
    }
    numbers = "  ".join(f"{name} {value:.1e}" for name, value in sorted(far.items()))
    print(f"{stage}: adapter {adapter_distance(one, other):.1e}  {numbers}")


def test_sft_is_the_same(context: Any, two: Hardware) -> None:
    """Processes have a micro-batch between them, whose replies differ in length."""
    check_same(context, two, "sft", SFTConfig(**SHARED, batch_size=4, eval_steps=2))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "batch_size", "grad_accum"), [("dpo", 2, 2), ("orpo", 4, 1)], ids=["dpo", "orpo"])
def test_preference_is_the_same(
    method: str, batch_size: int, grad_accum: int, context: Any, two: Hardware, pairs: Mapping[str, Path]
) -> None:
    """Micro-batches are dealt out to the processes; one that there is, they have between them."""
    cfg = PreferenceConfig(
        **SHARED, method=PreferenceMethod[method], batch_size=batch_size, grad_accum=grad_accum, eval_steps=4
    )
    check_same(context, two, "preference", cfg, data=pairs)


COUNTING = """
import os
from pathlib import Path

def reward(prompt, completion):
    with Path({log!r}).open("a") as file:
        file.write(repr((prompt, completion)) + "\\n")
    return float(sum(letter.islower() for letter in completion))
"""


@pytest.mark.slow
@pytest.mark.parametrize("resample", [0, 2])
def test_reinforce_is_the_same_on_recorded_completions(
    resample: int, context: Any, two: Hardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also which rows stand in for groups without variance; every completion is scored once, by one process."""
    recorded: dict[str, list[list[int]]] = {}
    sampled = OnPolicyTrainer._groups

    def record(self: OnPolicyTrainer, prompts: Sequence[int]) -> list[Group]:
        groups = sampled(self, prompts)
        for row, group in zip(prompts, groups, strict=True):
            recorded[f"{self.state.global_step} {row}"] = group.completions
        (tmp_path / "record.json").write_text(json.dumps(recorded))
        return groups

    monkeypatch.setattr(OnPolicyTrainer, "_groups", record)
    monkeypatch.setattr(flows.ranks, "ENTRY", "tests.stages.rank_on_record")
    monkeypatch.setenv("RECORD", str(tmp_path / "record.json"))
    log = tmp_path / "calls.txt"
    (tmp_path / "counting.py").write_text(COUNTING.format(log=str(log)))
    rewards = load_rewards({"lower": {"type": "custom", "path": str(tmp_path / "counting.py")}})
    band = DifficultyConfig(max_success=0.9, success_at=3.0, samples=2, batch_size=20)
    cfg = ReinforceConfig(**SHARED, batch_size=4, group_size=2, max_new_tokens=3, resample=resample, difficulty=band)
    one = run_reinforce(cfg, context("one", rewards=rewards))
    calls, expected = sorted(log.read_text().splitlines()), rows_of(context)
    log.unlink()
    result = run_ranks("reinforce", cfg, context("two", hardware=two, rewards=rewards))
    found = rows_of(context)
    assert sorted(log.read_text().splitlines()) == calls
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, abs=CLOSE)
    assert sum(row["resampled"] for row in found) >= bool(resample)
    assert adapter_distance(one, result) < CLOSE
    show("reinforce", one, result, expected, found)


def ranks() -> dict[int, psutil.Process]:
    """The ranks that this process has started, by way of torchrun, and that are still there."""
    found = {}
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            if "stages.rank_main" in (line := each.cmdline()) and "--standalone" not in line:
                found[int(each.environ()["RANK"])] = each
    return found


@pytest.mark.slow
def test_a_killed_rank_is_reported_and_the_next_attempts_end_the_same(context: Any, two: Hardware) -> None:
    """Ranks draw samples and dropout of their own, and go on where they stood; being asked to end loses nothing."""
    settings = {**SHARED, "lora": LoraConfig(r=4, dropout=0.1)}
    cfg = ReinforceConfig(
        **settings, batch_size=2, group_size=3, max_new_tokens=3, eval_steps=1, keep=Keep.best, resample=1
    )
    inputs = {"hardware": two, "rewards": LOWER_CASE}
    whole = run_ranks("reinforce", cfg, context("whole", **inputs))
    expected = rows_of(context)
    ctx = context("parts", **inputs)

    def kill_one(row: Mapping[str, float]) -> None:
        if row["step"] == 2:
            ranks()[1].kill()
        ctx.log_metrics(row)

    with pytest.raises(RankError, match=r"rank 1 of 2 was ended by SIGKILL; the end of .*rank-1\.log:"):
        run_ranks("reinforce", cfg, replace(ctx, log_metrics=kill_one))
    assert ranks() == {}
    states = sorted(path.name for path in (ctx.out_dir / "checkpoints" / "step-00000001").glob("rng_state*"))
    assert states == ["rng_state_0.pth", "rng_state_1.pth"]
    told: list[Mapping[str, float]] = []

    def log(row: Mapping[str, float]) -> None:
        told.append(row)
        ctx.log_metrics(row)

    with pytest.raises(Interrupted, match=r"after step [23] of 4"):
        run_ranks("reinforce", cfg, replace(ctx, log_metrics=log, stopping=lambda: bool(told)))
    result = run_ranks("reinforce", cfg, ctx)
    latest = {row["step"]: row for row in rows_of(context)}
    assert list(latest.values()) == expected
    assert result.model.adapters[0].sha256 == whole.model.adapters[0].sha256
    assert result.metrics == whole.metrics


FAILING = """
def reward(prompt, completion):
    if prompt == {prompt!r}:
        raise ValueError("no idea")
    return float(len(completion))
"""


@pytest.mark.slow
def test_an_error_of_any_rank_is_the_error_of_the_stage(context: Any, two: Hardware, tmp_path: Path) -> None:
    """The second half of a step's prompts is with rank 1."""
    rows = [Row(prompt=f"{place}?", row={}) for place in range(4)]
    data = {"train": write_rows(tmp_path / "four.jsonl", rows)}
    last = wrapped_order(4, 4, 0)[-1]
    (tmp_path / "failing.py").write_text(FAILING.format(prompt=rows[last].prompt_text))
    rewards = load_rewards({"mine": {"type": "custom", "path": str(tmp_path / "failing.py")}})
    cfg = ReinforceConfig(**SHARED, batch_size=4, group_size=2, max_new_tokens=3)
    ctx = context("two", hardware=two, rewards=rewards, data=data)
    with pytest.raises(RewardError, match=rf"^step 1: training row {last + 1}: reward 'mine' failed: .*no idea"):
        run_ranks("reinforce", cfg, ctx)
    assert ranks() == {}


def test_several_processes_are_not_run_in_one(context: Any, two: Hardware) -> None:
    with pytest.raises(RuntimeError, match=r"run_ranks"):
        run_sft(SFTConfig(**SHARED), context("sft", hardware=two))


def test_every_rank_draws_its_own() -> None:
    seeds = {(seed, rank): seed_of(rank, seed) for seed in range(50) for rank in range(8)}
    assert len(set(seeds.values())) == len(seeds)
    assert all(seeds[seed, 0] == seed for seed in range(50))
