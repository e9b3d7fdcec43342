"""Preference optimisation: the ids that the trainers see, and their losses against the papers' formulas."""

import math
from typing import Any

import pytest
import torch

from conf.errors import UserError
from conf.training import PreferenceConfig, PreferenceMethod, SFTConfig
from stages.contract import ModelRef
from stages.fold import load_folded
from stages.preference import preference_trainer, run_preference, tokenise
from stages.prefix_tree import ATTENTION
from stages.rows import Row, write_rows
from stages.sft import run_sft

ROWS = [
    Row(prompt="1+1", system="Add.", chosen="2", rejected="eleven"),
    Row(prompt="2+2", chosen="four", rejected=""),
    Row(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], chosen="c", rejected="dd"),
    Row(prompt="3+3", chosen=" 6 ", rejected="7"),
]


def test_pairs_are_prompt_and_both_replies_with_their_end(tokenizer: Any, tiny: ModelRef) -> None:
    pairs, _, counts = tokenise(ROWS, tokenizer, tiny, 100)
    texts = [tokenizer.decode(pairs[0][name]) for name in ("prompt_ids", "chosen_ids", "rejected_ids")]
    prompt = "<|start|>system\nAdd.<|end|>\n<|start|>user\n1+1<|end|>\n<|start|>assistant\n"
    assert texts == [prompt, "2<|end|>", "eleven<|end|>"]
    assert tokenizer.decode(pairs[1]["rejected_ids"]) == "<|end|>"
    assert counts == {"dropped_rows": 0, "truncated_rows": 0}


def test_long_replies_are_cut_and_rows_without_room_are_dropped(tokenizer: Any, tiny: ModelRef) -> None:
    rows = [Row(prompt="a", chosen="x", rejected="y" * 30), Row(prompt="a" * 60, chosen="x", rejected="y")]
    room = 4
    length = len(tokenise(rows, tokenizer, tiny, 1000)[0][0]["prompt_ids"]) + room
    (pair,), _, counts = tokenise(rows, tokenizer, tiny, length)
    assert [len(pair[name]) for name in ("chosen_ids", "rejected_ids")] == [2, room]
    assert counts == {"dropped_rows": 1, "truncated_rows": 1}


def test_rows_without_a_pair_are_a_clear_error(context: Any) -> None:
    with pytest.raises(UserError, match="training row 1 has no pair of replies; map `chosen` and `rejected`"):
        run_preference(PreferenceConfig(), context("preference"))


def trainer_for(
    context: Any, start: ModelRef, tokenizer: Any, method: PreferenceMethod, tmp: str
) -> tuple[Any, list[Any], Any]:
    """A trainer whose new adapter is not at zero, so that policy and reference differ; its pairs and its batch."""
    cfg = PreferenceConfig(method=method, batch_size=4, max_steps=1, beta=0.3)
    ctx = context(tmp, models={"start": start})
    pairs, _, _ = tokenise(ROWS, tokenizer, start, cfg.max_length)
    trainer = preference_trainer(cfg, ctx, tokenizer, pairs)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in trainer.model.named_parameters():
        if "lora_B" in name:
            parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return trainer, pairs, next(iter(trainer.get_train_dataloader()))


@torch.no_grad()
def reply_logps(model: Any, prompt: list[int], reply: list[int]) -> torch.Tensor:
    """Log probability of every token of one reply, without padding."""
    logps = torch.log_softmax(model(input_ids=torch.tensor([prompt + reply])).logits[0].double(), -1)
    return torch.stack([logps[len(prompt) + index - 1, token] for index, token in enumerate(reply)])


def sequences(ids: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    return [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]


def test_dpo_sees_our_ids_and_its_loss_is_the_papers(context: Any, tokenizer: Any, hardware: Any) -> None:
    """-log sigmoid(beta ((log pi(c) - log ref(c)) - (log pi(r) - log ref(r)))), reference = the folded start."""
    start = run_sft(SFTConfig(batch_size=8, max_steps=2, learning_rate=1e-2, n_samples=0), context("sft")).model
    trainer, pairs, batch = trainer_for(context, start, tokenizer, PreferenceMethod.dpo, "dpo")
    assert trainer.model.config._attn_implementation == ATTENTION, "prefixes are shared"
    seen = sequences(batch["input_ids"], batch["attention_mask"])
    order = [seen.index(pair["prompt_ids"] + pair["chosen_ids"]) for pair in pairs]
    assert sorted(order) == [0, 1, 2, 3]
    for index, pair in zip(order, pairs, strict=True):
        assert seen[index + 4] == pair["prompt_ids"] + pair["rejected_ids"]
        assert int(batch["completion_mask"][index].sum()) == len(pair["chosen_ids"])

    reference = load_folded(start, hardware).model
    losses = []
    for pair in pairs:
        policy, ref = (
            [float(reply_logps(model, pair["prompt_ids"], pair[name]).sum()) for name in ("chosen_ids", "rejected_ids")]
            for model in (trainer.model, reference)
        )
        margin = (policy[0] - ref[0]) - (policy[1] - ref[1])
        assert abs(margin) > 1e-3
        losses.append(math.log1p(math.exp(-0.3 * margin)))
    loss = trainer.compute_loss(trainer.model, batch)
    assert loss.item() == pytest.approx(sum(losses) / 4, rel=1e-5)


def test_orpo_sees_our_ids_and_its_loss_is_the_papers(context: Any, tiny: ModelRef, tokenizer: Any) -> None:
    """Mean NLL of the chosen sequences minus beta log sigmoid(log odds ratio) of the replies' mean probabilities."""
    trainer, pairs, batch = trainer_for(context, tiny, tokenizer, PreferenceMethod.orpo, "orpo")
    for name in ("chosen", "rejected"):
        seen = sequences(batch[f"{name}_input_ids"], batch[f"{name}_attention_mask"])
        targets = sequences(batch[f"{name}_labels"], batch[f"{name}_labels"] != -100)
        assert sorted(seen) == sorted(pair["prompt_ids"] + pair[f"{name}_ids"] for pair in pairs)
        assert sorted(targets) == sorted(pair[f"{name}_ids"] for pair in pairs)

    likelihoods, ratios = [], []
    for pair in pairs:
        sequence = pair["prompt_ids"] + pair["chosen_ids"]
        likelihoods.append(reply_logps(trainer.model, sequence[:1], sequence[1:]))
        chosen, rejected = (
            float(reply_logps(trainer.model, pair["prompt_ids"], pair[name]).mean())
            for name in ("chosen_ids", "rejected_ids")
        )
        odds = (chosen - math.log1p(-math.exp(chosen))) - (rejected - math.log1p(-math.exp(rejected)))
        ratios.append(-math.log1p(math.exp(-odds)))
    expected = -float(torch.cat(likelihoods).mean()) - 0.3 * sum(ratios) / 4
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("method", list(PreferenceMethod))
def test_it_learns_the_preference(context: Any, method: PreferenceMethod) -> None:
    data = {**context.defaults["data"], "train": write_rows(context.folder / "pairs.jsonl", ROWS * 2)}
    cfg = PreferenceConfig(method=method, batch_size=8, max_steps=8, learning_rate=1e-2, n_samples=1)
    result = run_preference(cfg, context("preference", data=data))
    first, last = context.logged[0], context.logged[-1]
    assert set(first) >= {"loss", "margin", "accuracy", "learning_rate", "grad_norm", "step", "epoch", "time"}
    assert last["margin"] > first["margin"]
    assert last["accuracy"] == 1.0
    assert len(result.model.adapters) == 1
    assert len((result.artifacts["samples"]).read_text().splitlines()) == 1
