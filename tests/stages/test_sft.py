"""Supervised fine-tuning: the ids that are trained on, and the loss."""

from typing import Any

import pytest
import torch

from conf.errors import UserError
from conf.training import SFTConfig
from stages.contract import ModelRef
from stages.models import load_base
from stages.order import wrapped_order
from stages.rows import Row, write_rows
from stages.sft import run_sft, tokenise


def test_rows_are_prompt_reply_and_end_with_the_loss_on_the_reply(tokenizer: Any, tiny: ModelRef) -> None:
    row = Row(prompt="1+1", system="Add.", response="2")
    (tokens,), _, counts = tokenise([row], tokenizer, tiny, 100)
    text = "<|start|>system\nAdd.<|end|>\n<|start|>user\n1+1<|end|>\n<|start|>assistant\n2<|end|>"
    assert tokenizer.decode(tokens["input_ids"]) == text
    reply = tokenizer("2<|end|>", add_special_tokens=False)["input_ids"]
    assert tokens["labels"] == [-100] * (len(tokens["input_ids"]) - 2) + reply
    assert counts == {"dropped_rows": 0, "truncated_rows": 0}


def test_long_rows_lose_the_end_of_the_reply_and_rows_without_room_are_dropped(tokenizer: Any, tiny: ModelRef) -> None:
    rows = [Row(prompt="a", response="x" * 20), Row(prompt="a" * 60, response="x"), Row(prompt="a", response="x")]
    length = len(tokenise([rows[2]], tokenizer, tiny, 100)[0][0]["input_ids"])
    tokens, _, counts = tokenise(rows, tokenizer, tiny, length)
    assert [row["input_ids"][-2:] for row in tokens] == [
        tokenizer(end, add_special_tokens=False)["input_ids"] for end in ("xx", "x<|end|>")
    ]
    assert counts == {"dropped_rows": 1, "truncated_rows": 1}


@pytest.mark.parametrize(
    ("row", "max_length", "message"),
    [
        (Row(prompt="a"), 100, "training row 2 has no reply to learn"),
        (Row(prompt="a", response="b"), 8, "none of the 2 training rows leaves room for a reply; max_length is 8"),
    ],
)
def test_errors_name_row_and_remedy(tokenizer: Any, tiny: ModelRef, row: Row, max_length: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tokenise([Row(prompt="a", response="b"), row], tokenizer, tiny, max_length)


@torch.no_grad()
def mean_loss(tiny: ModelRef, hardware: Any, tokens: list[dict[str, list[int]]]) -> float:
    """Mean negative log-likelihood per target token, one row after the other, without padding."""
    model = load_base(tiny, hardware)
    total, count = 0.0, 0
    for row in tokens:
        logps = torch.log_softmax(model(input_ids=torch.tensor([row["input_ids"]])).logits[0].double(), -1)
        for position, label in enumerate(row["labels"]):
            if label != -100:
                total -= float(logps[position - 1, label])
                count += 1
    return total / count


@pytest.mark.parametrize(
    ("batch_size", "grad_accum", "shared"), [(8, 1, True), (4, 2, True), (1, 8, True), (4, 2, False)]
)
def test_the_loss_is_the_mean_over_the_tokens_of_the_whole_step(
    context: Any, tiny: ModelRef, tokenizer: Any, hardware: Any, batch_size: int, grad_accum: int, shared: bool
) -> None:
    rows = [Row(prompt="a" * index, response="b" * (index * index)) for index in range(1, 10)]
    ctx = context("sft", data={"train": write_rows(context.folder / "train.jsonl", rows)})
    run_sft(SFTConfig(batch_size=batch_size, grad_accum=grad_accum, max_steps=1, shared_prefix=shared), ctx)
    tokens, _, _ = tokenise(rows, tokenizer, tiny, 1024)
    expected = mean_loss(tiny, hardware, [tokens[index] for index in wrapped_order(9, 8, seed=0)])
    assert context.logged[0]["loss"] == pytest.approx(expected, rel=1e-5)


def test_it_learns_and_more_passes_than_rows_wrap(context: Any) -> None:
    run_sft(SFTConfig(batch_size=7, epochs=3, learning_rate=2e-2), context("sft"))
    losses = [row["loss"] for row in context.logged]
    assert len(losses) == 13  # ceil(30 x 3 / 7)
    assert losses[-1] < losses[0] / 2


def test_a_second_stage_starts_from_the_folded_first(context: Any, hardware: Any) -> None:
    cfg = SFTConfig(batch_size=8, max_steps=4, learning_rate=2e-2)
    first = run_sft(cfg, context("first"))
    second = run_sft(cfg, context("second", models={"start": first.model}))
    assert second.model.adapters[0] == first.model.adapters[0]
    assert len(second.model.adapters) == 2
    losses = [row["loss"] for row in context.logged]
    assert losses[4] < losses[0] / 1.5  # the second stage's first step, on the same rows
