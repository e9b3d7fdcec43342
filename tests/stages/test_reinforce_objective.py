"""The objective of `reinforce` against a short independent implementation, and what is sampled against the model."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from transformers import GenerationConfig, TrainerCallback

from conf.rewards import load_rewards
from conf.schema import ModelConfig
from conf.training import LoraConfig, ReinforceConfig
from rewards.scoring import RewardSet
from stages.chat import prompt_ids
from stages.contract import Hardware, ModelRef, StageContext
from stages.groups import by_group
from stages.grpo import OnPolicyTrainer
from stages.hardware import prepare
from stages.identity import model_directory, resolve_model
from stages.models import load_tokenizer
from stages.reinforce import reinforce_trainer
from stages.rows import Row, write_rows

GROUP = 3
ROWS = [
    Row(prompt="One?", row={}),
    Row(prompt="And two, which is longer?", system="Be brief.", row={}),
    Row(
        messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]
    ),
    Row(prompt="4", row={}),
]
END, STOP = "<|end|>", "!"
# Per row a group of completions; some end, early or late, some are cut off; what follows the end must not matter.
COMPLETIONS = [
    [f"ab{END}xy", f"b{STOP}bca", "abcde"],
    [f"{END}aaaa", "ccccc", f"aaaa{END}"],
    [f"xyz{STOP}{END}", f"xy{END}aa", f"x{END}{END}aa"],  # all rewards equal
    ["aaaaa", f"abab{STOP}", f"c{END}abc"],
]
REWARDS = {
    "a": {"type": "regex", "pattern": "a", "weight": 1.0},
    "b": {"type": "regex", "pattern": "b", "weight": 0.5},
    "c": {"type": "regex", "pattern": "c", "weight": -0.7},
}

MakeTrainer = Callable[..., OnPolicyTrainer]


class FixedCompletions(OnPolicyTrainer):
    """Samples nothing: the completions of a row are given."""

    def _generate_single_turn(self, prompts: list[list[int]], *_: Any, **__: Any) -> Any:
        rows = [self.prompt_ids.index(prompt) for prompt in prompts]
        return [self.given[row][place % GROUP] for place, row in enumerate(rows)], None


class Gradients(TrainerCallback):  # type: ignore[misc]
    """Keeps the gradients of the one optimiser step, and its loss."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.gradients = gradients(model)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.loss = logs.get("loss", getattr(self, "loss", None))


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.fixture
def make_trainer(tmp_path: Path, tiny: ModelRef, hardware: Hardware) -> MakeTrainer:
    def make(cfg: ReinforceConfig, start: ModelRef = tiny, rows: list[Row] = ROWS) -> OnPolicyTrainer:
        prepare(hardware, 0)
        data = {"train": write_rows(tmp_path / "train.jsonl", rows)}
        ctx = StageContext(
            models={"start": start},
            out_dir=tmp_path,
            seed=0,
            hardware=hardware,
            data=data,
            rewards=load_rewards(REWARDS),
        )
        return reinforce_trainer(cfg, ctx, load_tokenizer(start), rows, RewardSet(ctx.rewards))

    return make


def reference_objective(
    trainer: OnPolicyTrainer, completions: list[list[list[int]]], ends: set[int], cfg: ReinforceConfig
) -> torch.Tensor:
    """GRPO written down from the paper, one completion at a time, without padding."""
    losses = []
    for prompt, group in zip(trainer.prompt_ids, completions, strict=True):
        kept = [cut(completion, ends) for completion in group]
        rewards = torch.tensor([reward(trainer, ids) for ids in kept])
        advantages = (rewards - rewards.mean()) / (rewards.std(unbiased=True) + 1e-4)
        for ids, advantage in zip(kept, advantages, strict=True):
            new = token_log_probs(trainer.model, prompt, ids, cfg.temperature)
            with torch.no_grad(), trainer.model.disable_adapter():
                old = token_log_probs(trainer.model, prompt, ids, cfg.temperature)
            kl = torch.exp(old - new) - (old - new) - 1
            loss = (-advantage * torch.exp(new - new.detach()) + cfg.beta * kl).mean()
            losses.append(0 * loss if cfg.mask_truncated and ids[-1] not in ends else loss)
    return torch.stack(losses).mean()


def cut(completion: list[int], ends: set[int]) -> list[int]:
    for place, token in enumerate(completion):
        if token in ends:
            return completion[: place + 1]
    return completion


def reward(trainer: OnPolicyTrainer, ids: list[int]) -> float:
    text = trainer.processing_class.decode(ids, skip_special_tokens=True)
    return ("a" in text) + 0.5 * ("b" in text) - 0.7 * ("c" in text)


def token_log_probs(model: Any, prompt: list[int], completion: list[int], temperature: float) -> torch.Tensor:
    logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1)[range(len(completion)), completion]


@pytest.mark.parametrize(("batch_size", "grad_accum"), [(4, 1), (2, 2), (1, 4)])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("mask_truncated", [False, True])
def test_loss_and_gradients_are_those_of_the_paper(
    make_trainer: MakeTrainer,
    tiny: ModelRef,
    batch_size: int,
    grad_accum: int,
    shared: bool,
    mask_truncated: bool,
) -> None:
    cfg = ReinforceConfig(
        shared_prefix=shared,
        batch_size=batch_size,
        grad_accum=grad_accum,
        group_size=GROUP,
        beta=0.3,
        temperature=0.7,
        max_steps=1,
        max_new_tokens=5,
        mask_truncated=mask_truncated,
        max_grad_norm=1e9,
    )
    start = ModelRef(config=ModelConfig(id="tiny:random", stop_tokens=[STOP]), sha256=tiny.sha256)
    trainer = make_trainer(cfg, start)
    assert (trainer.model.config._attn_implementation == "prefix_tree") is trainer.shared_prefix is shared
    tokenizer = trainer.processing_class
    completions = [[tokenizer(text)["input_ids"] for text in group] for group in COMPLETIONS]
    ends = set(tokenizer.convert_tokens_to_ids([END, STOP]))
    trainer.__class__ = FixedCompletions
    trainer.given = [[cut(ids, ends) for ids in group] for group in completions]
    away_from_the_start(trainer.model)

    expected_loss = reference_objective(trainer, completions, ends, cfg)
    expected_loss.backward()
    expected = gradients(trainer.model)
    trainer.model.zero_grad()

    seen = Gradients()
    trainer.add_callback(seen)
    trainer.train()
    assert seen.loss == pytest.approx(expected_loss.item(), rel=1e-4, abs=1e-6)
    assert expected and max(gradient.abs().max() for gradient in expected.values()) > 1e-2
    for name, gradient in expected.items():
        # Elements near zero are sums that cancel: their rounding goes by the size of the tensor (and by processor).
        rounding = 1e-5 * gradient.abs().max().item()
        torch.testing.assert_close(seen.gradients[name], gradient, rtol=0, atol=rounding, msg=name)


@pytest.mark.parametrize(("batch_size", "grad_accum"), [(4, 1), (1, 4)])
def test_ten_steps_on_the_same_completions_leave_the_same_adapter(
    make_trainer: MakeTrainer, batch_size: int, grad_accum: int
) -> None:
    cfg = ReinforceConfig(
        batch_size=batch_size, grad_accum=grad_accum, group_size=GROUP, max_steps=10, max_new_tokens=5, beta=0.1
    )
    left: list[dict[str, torch.Tensor]] = []
    for shared in (True, False):
        trainer = make_trainer(dataclasses.replace(cfg, shared_prefix=shared))
        tokenizer = trainer.processing_class
        end = tokenizer.convert_tokens_to_ids(END)
        trainer.__class__ = FixedCompletions
        trainer.given = [[cut(tokenizer(text)["input_ids"], {end}) for text in group] for group in COMPLETIONS]
        start = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
        trainer.train()
        left.append({name: w.detach() - start[name] for name, w in trainer.model.named_parameters() if "lora_" in name})
    ours, stock = (torch.cat([change.flatten() for change in changes.values()]) for changes in left)
    assert stock.norm() > 0.01
    assert (ours - stock).norm() < 1e-3 * stock.norm()


def test_groups_stay_together_over_micro_batches() -> None:
    """Two micro-batches as TRL deals them, at random; what belongs to no completion is left as it is."""
    order = torch.tensor([5, 0, 3, 1, 4, 2, 7, 6])
    rows = {"ids": torch.arange(8)[:, None].expand(8, 2), "group": torch.arange(4).repeat_interleave(2)}
    dealt = [
        {name: values[part] for name, values in rows.items()} | {"count": torch.tensor(8), "nothing": None}
        for part in order.split(4)
    ]
    first, second = by_group(dealt)
    assert first["group"].tolist() == [0, 0, 1, 1] and second["group"].tolist() == [2, 2, 3, 3]
    assert sorted(first["ids"][:, 0].tolist()) == [0, 1, 2, 3] and sorted(second["ids"][:, 1].tolist()) == [4, 5, 6, 7]
    assert first["count"] == second["count"] == 8 and first["nothing"] is None


def away_from_the_start(model: torch.nn.Module) -> None:
    """A fresh adapter changes nothing, so that the KL would be zero; give it an effect."""
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)


def test_the_reference_is_the_start_model_without_a_second_copy(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(ReinforceConfig(batch_size=2, group_size=2, max_steps=1, max_new_tokens=3, beta=0.1))
    assert trainer.ref_model is None and set(trainer.model.peft_config) == {"default"}


@pytest.mark.parametrize("shared", [True, False])
def test_trl_is_given_the_prompts_that_every_stage_sees(
    make_trainer: MakeTrainer, tiny: ModelRef, shared: bool
) -> None:
    trainer = make_trainer(
        ReinforceConfig(shared_prefix=shared, batch_size=4, group_size=2, max_steps=1, max_new_tokens=3)
    )
    batch = trainer._generate_and_score_completions([{"prompt": row} for row in (3, 3, 1, 1, 0, 0, 2, 2)])
    fed = [ids[mask.bool()].tolist() for ids, mask in zip(batch["prompt_ids"], batch["prompt_mask"], strict=True)]
    expected = [prompt_ids(trainer.processing_class, tiny.config, ROWS[row]) for row in (3, 1, 0, 2)]
    assert fed[::2] == fed[1::2] == expected


@pytest.mark.parametrize("shared", [True, False])
def test_samples_follow_the_models_own_distribution(make_trainer: MakeTrainer, shared: bool) -> None:
    samples, temperature = 1500, 0.8
    cfg = ReinforceConfig(
        shared_prefix=shared, batch_size=1, group_size=samples, max_steps=1, max_new_tokens=1, temperature=temperature
    )
    trainer = make_trainer(cfg)
    with torch.no_grad():  # a distribution with peaks, on which cuts and penalties would show
        trainer.model.get_base_model().base_model.norm.weight.mul_(4)
    prompt = trainer.prompt_ids[1]
    completions, _ = trainer._generate_single_turn([prompt] * samples, None, {}, samples)
    counts = torch.bincount(torch.tensor([ids[0] for ids in completions]), minlength=trainer.model.config.vocab_size)
    with torch.no_grad():
        logits = trainer.model(input_ids=torch.tensor([prompt])).logits[0, -1]
    expected = (logits.double() / temperature).softmax(-1) * samples
    rare = expected < 5
    observed = [*counts[~rare].tolist(), counts[rare].sum().item()]
    assert chisquare(observed, [*expected[~rare].tolist(), samples - expected[~rare].sum().item()]).pvalue > 1e-3


@pytest.mark.parametrize("shared", [True, False])
def test_a_models_generation_config_never_leaks(
    make_trainer: MakeTrainer, tiny: ModelRef, tmp_path: Path, shared: bool
) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    for file in model_directory(tiny).iterdir():
        (trap / file.name).write_bytes(file.read_bytes())
    leaks = {"do_sample": True, "top_k": 1, "top_p": 0.1, "min_p": 0.9, "temperature": 0.01}
    penalties = {"repetition_penalty": 5.0, "no_repeat_ngram_size": 1, "max_new_tokens": 1, "suppress_tokens": [70]}
    eos = GenerationConfig.from_pretrained(trap).eos_token_id
    GenerationConfig(**leaks, **penalties, eos_token_id=eos).save_pretrained(trap)
    sampled = []
    for start in (tiny, resolve_model(ModelConfig(id=str(trap)), "float32")):
        trainer = make_trainer(
            ReinforceConfig(shared_prefix=shared, batch_size=1, group_size=8, max_steps=1, max_new_tokens=6), start
        )
        torch.manual_seed(0)
        sampled.append(trainer._generate_single_turn([trainer.prompt_ids[0]] * 8, None, {}, 8)[0])
    assert sampled[0] == sampled[1]
    assert len({tuple(ids) for ids in sampled[0]}) == 8 and math.isclose(max(map(len, sampled[0])), 6)


@pytest.mark.parametrize("shared", [True, False])
def test_dropout_does_not_touch_what_is_sampled(make_trainer: MakeTrainer, shared: bool) -> None:
    sampled = []
    for dropout in (0.0, 0.5):
        lora = LoraConfig(dropout=dropout)
        trainer = make_trainer(
            ReinforceConfig(shared_prefix=shared, batch_size=1, group_size=8, max_steps=1, max_new_tokens=5, lora=lora)
        )
        torch.manual_seed(0)
        away_from_the_start(trainer.model)
        trainer.model.train()
        sampled.append(trainer._generate_single_turn([trainer.prompt_ids[0]] * 8, None, {}, 8)[0])
        assert trainer.model.training
    assert sampled[0] == sampled[1]
