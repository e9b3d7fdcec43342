"""Sampling by vLLM, with an engine in its place: what TRL is told, weights that stay, samples of a wrong model."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import trl
from trl.generation.vllm_generation import VLLMGeneration

from conf.errors import ConfigError
from conf.loader import load
from conf.rewards import load_rewards
from conf.schema import ModelConfig
from conf.training import ReinforceConfig, SFTConfig
from conf.vllm import VLLMConfig, VLLMMode
from rewards.scoring import RewardSet
from stages.contract import Hardware, ModelRef, StageContext
from stages.fold import lora_layers
from stages.grpo import OnPolicyTrainer
from stages.identity import model_directory
from stages.models import load_tokenizer
from stages.reinforce import reinforce_trainer, run_reinforce
from stages.rows import read_rows
from stages.sft import run_sft
from stages.vllm import StaleSamplerError, vllm_arguments
from tests.stages.vllm_engine import BrokenEngine, Engine, SilentEngine, StaleEngine, install

LOWER_CASE = load_rewards({"lower": {"type": "regex", "pattern": "[a-z]"}})
COLOCATE = VLLMConfig(mode=VLLMMode.colocate)


def config(vllm: VLLMConfig = COLOCATE, **settings: Any) -> ReinforceConfig:
    fast = {"batch_size": 3, "group_size": 4, "max_new_tokens": 6, "max_steps": 3, "learning_rate": 3e-2}
    return ReinforceConfig(**{**fast, "n_samples": 0, "save_steps": 1, "vllm": vllm, **settings})


def trainer_of(ctx: StageContext, cfg: ReinforceConfig) -> OnPolicyTrainer:
    rows = read_rows(ctx.data["train"])
    return reinforce_trainer(cfg, ctx, load_tokenizer(ctx.start), rows, RewardSet(LOWER_CASE))


def away_from_the_start(model: torch.nn.Module, std: float = 0.1) -> None:
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.copy_(std * torch.randn(weight.shape, generator=generator))


def base_weights(trainer: OnPolicyTrainer) -> dict[str, torch.Tensor]:
    return {name: layer.get_base_layer().weight.detach().clone() for name, layer in lora_layers(trainer.model)}


@pytest.mark.parametrize("settings", [{}, {"shared_prefix": False, "resample": 1, "grad_accum": 2, "batch_size": 2}])
def test_a_right_engine_trains_to_the_end(
    context: Any, monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, Any]
) -> None:
    install(monkeypatch, Engine)
    ctx = context("right", rewards=LOWER_CASE)
    result = run_reinforce(config(**settings), ctx)
    assert [row["step"] for row in context.logged] == [1, 2, 3]
    assert all(row["sampling_divergence"] < 1e-4 for row in context.logged)
    assert context.logged[-1]["kl"] > 1e-3, "the policy has moved"
    assert len(result.model.adapters) == 1


def test_a_right_server_trains_to_the_end(context: Any, monkeypatch: pytest.MonkeyPatch, tiny: ModelRef) -> None:
    install(monkeypatch, Engine, serves=str(model_directory(tiny)))
    server = VLLMConfig(mode=VLLMMode.server, server_base_url="http://localhost:8000")
    run_reinforce(config(server), context("right", rewards=LOWER_CASE))
    assert len(context.logged) == 3 and all(row["sampling_divergence"] < 1e-4 for row in context.logged)


def test_an_engine_with_the_weights_of_the_start_stops_the_stage(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, StaleEngine)
    ctx = context("stale", rewards=LOWER_CASE)
    with pytest.raises(StaleSamplerError) as caught:
        run_reinforce(config(max_steps=20), ctx)
    message = str(caught.value)
    step = len(context.logged) + 1
    assert 2 <= step <= 5, "the first step is sampled from the start itself"
    assert message.startswith(f"step {step}: vLLM does not sample the model that is trained: ")
    assert "0.1 are allowed (reinforce.vllm.max_divergence)" in message
    assert message.endswith(f"the last good checkpoint is {ctx.out_dir / 'checkpoints' / f'step-{step - 1:08d}'}")
    assert not (ctx.out_dir / "adapter").exists()

    install(monkeypatch, Engine)  # mended: the same stage goes on
    assert run_reinforce(config(max_steps=step), ctx).metrics["step"] == step


def test_an_engine_with_the_base_in_place_of_the_fold_stops_at_once(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sft = SFTConfig(batch_size=8, max_steps=4, learning_rate=3e-2, n_samples=0)
    start = run_sft(sft, context("sft")).model
    context.logged.clear()
    for engine, stops in ((StaleEngine, True), (Engine, False)):
        install(monkeypatch, engine)
        ctx = context(engine.__name__, rewards=LOWER_CASE, models={"start": start})
        if stops:
            with pytest.raises(StaleSamplerError, match=r"^step 1: .*there is no checkpoint yet$"):
                run_reinforce(config(), ctx)
        else:
            run_reinforce(config(max_steps=1), ctx)


def test_an_engine_that_does_not_tell_stops_the_stage(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, SilentEngine)
    with pytest.raises(StaleSamplerError, match="step 1: vLLM gives no log-probabilities"):
        run_reinforce(config(), context("silent", rewards=LOWER_CASE))


def test_a_higher_limit_is_taken(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, StaleEngine)
    lenient = VLLMConfig(mode=VLLMMode.colocate, max_divergence=1e3)
    run_reinforce(config(lenient), context("lenient", rewards=LOWER_CASE))
    assert context.logged[-1]["sampling_divergence"] > 0.1


@pytest.fixture(params=["colocate", "server"])
def half(request: pytest.FixtureRequest, context: Any, tiny: ModelRef, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trainer in bfloat16 whose adapter has an effect."""
    install(monkeypatch, Engine, serves=str(model_directory(tiny)))
    start = dataclasses.replace(tiny, dtype="bfloat16")
    ctx = context("half", models={"start": start}, hardware=Hardware(dtype="bfloat16"), rewards=LOWER_CASE)
    trainer = trainer_of(ctx, config(VLLMConfig(mode=VLLMMode[request.param])))
    away_from_the_start(trainer.model, std=1e-3)
    return trainer


def test_weights_are_the_same_to_the_bit_after_every_synchronisation(half: OnPolicyTrainer) -> None:
    before = base_weights(half)
    generation = half.vllm_generation
    for _ in range(3):
        generation.sync_weights()
        after = base_weights(half)
        assert all(torch.equal(after[name], weight) for name, weight in before.items())
        assert not any(layer.merged for _, layer in lora_layers(half.model))

    engine = generation.llm if generation.mode == "colocate" else generation.vllm_client.engine
    name = next(iter(before))
    sent = engine.model.get_parameter(f"{name}.weight")
    assert (sent - before[name]).abs().max() > 0, "and the engine has the adapter in its weights"

    VLLMGeneration.sync_weights(generation)  # what TRL alone does
    after = base_weights(half)
    drifted = any(not torch.equal(after[name], weight) for name, weight in before.items())
    assert drifted or any(layer.merged for _, layer in lora_layers(half.model)), "this test could fail"


def test_weights_are_the_same_after_a_synchronisation_that_failed(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, BrokenEngine)
    trainer = trainer_of(context("broken", rewards=LOWER_CASE), config())
    away_from_the_start(trainer.model)
    before = base_weights(trainer)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.vllm_generation.sync_weights()
    assert all(torch.equal(weight, before[name]) for name, weight in base_weights(trainer).items())
    assert not any(layer.merged for _, layer in lora_layers(trainer.model))


def test_the_environment_stays_as_it_is(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Engine)
    before = dict(os.environ)
    trainer = trainer_of(context("environment", rewards=LOWER_CASE), config())
    assert dict(os.environ) == before
    assert trainer.vllm_generation.llm.settings["distributed_executor_backend"] == "external_launcher"


def test_what_ends_a_completion_is_told_to_vllm(context: Any, monkeypatch: pytest.MonkeyPatch, tiny: ModelRef) -> None:
    install(monkeypatch, Engine)
    start = ModelRef(config=ModelConfig(id="tiny:random", stop_tokens=["!"]), sha256=tiny.sha256)
    trainer = trainer_of(context("stops", models={"start": start}, rewards=LOWER_CASE), config())
    ends = trainer.processing_class.convert_tokens_to_ids(["<|end|>", "!"])
    assert trainer.vllm_generation.generation_kwargs == {"stop_token_ids": ends}


def test_the_names_are_those_of_the_installed_trl() -> None:
    """Every field of ours is one of TRL's, with its default; every one of TRL's is ours, or refused, or set by us."""
    theirs = {field.name: field.default for field in dataclasses.fields(trl.GRPOConfig)}
    for field in dataclasses.fields(VLLMConfig):
        if field.name not in ("mode", "max_divergence"):
            assert getattr(field.default, "name", field.default) == theirs[f"vllm_{field.name}"], field.name
    told = vllm_arguments(COLOCATE, [7])
    assert set(told) - {"use_vllm", "generation_kwargs"} == {name for name in theirs if name.startswith("vllm_")}
    assert told["use_vllm"] and told["vllm_mode"] == "colocate" and told["vllm_model_impl"] == "vllm"
    without = vllm_arguments(VLLMConfig(), [7])
    assert not without["use_vllm"] and without["generation_kwargs"] is None


@pytest.mark.parametrize(
    ("vllm", "message"),
    [
        ({"mode": "colocated"}, "vllm.mode: expected one of colocate, server; got text"),
        ({"mode": "colocate", "gpu_memory_utilisation": 1}, "unknown key; did you mean 'gpu_memory_utilization'"),
        ({"max_divergence": 1.0}, "vllm.max_divergence: needs to know where vLLM runs: mode: colocate or server"),
        ({"mode": "colocate", "server_port": 1}, "vllm.server_port: is of mode: server"),
        ({"mode": "server", "tensor_parallel_size": 2}, "vllm.tensor_parallel_size: is of mode: colocate"),
        ({"mode": "server", "server_base_url": "gpu1:8000"}, "server_base_url: expected http://HOST:PORT, got 'gpu1"),
        ({"mode": "server", "server_base_url": "http://gpu1:x"}, "server_base_url: expected http://HOST:PORT, got"),
        ({"mode": "server", "temperature": 1.0}, "vllm.temperature: is reinforce.temperature"),
        ({"mode": "server", "top_p": 0.9}, "vllm.top_p: the policy itself is sampled"),
        ({"mode": "server", "max_divergence": 0.0}, "vllm.max_divergence: must be above 0"),
        ({"mode": "server", "importance_sampling_clip_min": 4.0}, "clip_min: must be below .* got 4"),
        (
            {"mode": "server", "importance_sampling_mode": "token_truncate", "importance_sampling_clip_max": None},
            "clip_max: there is nothing to truncate at",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(vllm: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(ReinforceConfig, {"vllm": vllm}, "reinforce")


def test_dropout_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"reinforce\.lora\.dropout: must be 0 with reinforce\.vllm"):
        load(ReinforceConfig, {"vllm": {"mode": "server"}, "lora": {"dropout": 0.1}}, "reinforce")


@pytest.mark.parametrize(
    ("field", "instead"), [("use_vllm", "mode"), ("vllm_mode", "mode"), ("vllm_server_port", "server_port")]
)
def test_trl_names_in_trainer_are_answered_with_ours(context: Any, field: str, instead: str) -> None:
    cfg = ReinforceConfig(trainer={field: 1})
    message = rf"reinforce\.trainer\.{field}: is set by Ratchet; use reinforce\.vllm\.{instead}$"
    with pytest.raises(ConfigError, match=message):
        trainer_of(context("trainer", rewards=LOWER_CASE), cfg)
