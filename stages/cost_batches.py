"""From a stage's settings and the lengths of its rows to what one micro-batch of it is at most, for `stages.cost`.

A row's length in tokens is that of its texts, by the model's tokenizer where that is on this machine, and what a chat
template writes around them. Light: rows are read, no torch is loaded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.training import PreferenceConfig, PreferenceMethod, ReinforceConfig, SFTConfig, TrainingConfig
from stages.contract import Hardware
from stages.cost import Batch
from stages.rows import Row

TEMPLATE_TOKENS = 8
"""What a chat template writes around one message, about."""

BYTES_PER_TOKEN = 3
"""Where there is no tokenizer: English has more than four bytes to a token, numbers and code fewer."""

WORTH_IT = 0.5
"""On a GPU, the share of a padded batch below which a tree is used (`stages.shared_prefix.WORTH_IT`)."""

UNKNOWN_PROMPT = 512
"""Tokens of a prompt where no rows can be looked at."""

Count = Callable[[Sequence[str]], list[int]]
"""Tokens of every text."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of one row: its prompt, and the replies that are trained on."""

    prompt: int
    replies: tuple[int, ...] = ()


def counter(directory: Path | None) -> Count:
    """The tokenizer of a model's directory, or a guess by the number of bytes."""
    path = directory and directory / "tokenizer.json"
    if path is None or not path.is_file():
        return _guess
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception:  # it raises no narrower one; who loads the model reports the damage
        return _guess
    return lambda texts: [len(each) for each in tokenizer.encode_batch(list(texts), add_special_tokens=False)]


def _guess(texts: Sequence[str]) -> list[int]:
    return [-(-len(text.encode()) // BYTES_PER_TOKEN) for text in texts]


def longest_rows(rows: Sequence[Row], number: int, count: Count) -> list[Lengths]:
    """Lengths of the longest rows; which these are is told by their bytes."""
    chosen = sorted(rows, key=lambda row: -sum(len(text.encode()) for text in _texts(row)))[:number]
    return [_lengths(row, count) for row in chosen]


def _texts(row: Row) -> list[str]:
    return [str(message["content"]) for message in row.conversation] + _replies(row)


def _replies(row: Row) -> list[str]:
    return [reply for reply in (row.response, row.chosen, row.rejected) if reply is not None]


def _lengths(row: Row, count: Count) -> Lengths:
    conversation = count([str(message["content"]) for message in row.conversation])
    prompt = sum(conversation) + TEMPLATE_TOKENS * (len(conversation) + 1)
    replies = [row.response] if row.chosen is None else [row.chosen, row.rejected]
    return Lengths(prompt, tuple(length + 1 for length in count([reply or "" for reply in replies])))


def micro_batch(settings: TrainingConfig, hardware: Hardware, rows: Sequence[Lengths]) -> Batch:
    """What a micro-batch of the longest rows is; of the longest that are possible where none are known."""
    if isinstance(settings, ReinforceConfig):
        return _reinforce(settings, hardware, rows)
    limit = settings.max_length if isinstance(settings, SFTConfig | PreferenceConfig) else 0
    if not rows:
        pair = isinstance(settings, PreferenceConfig)
        rows = [Lengths(0 if pair else limit // 2, (limit, limit) if pair else (limit // 2,))] * settings.batch_size
    rows = [_cut(row, limit) for row in _repeated(rows, settings.batch_size)]
    replies = [length for row in rows for length in row.replies]
    longest = max(row.prompt + reply for row in rows for reply in row.replies)
    return _batch(
        settings,
        hardware,
        sequences=len(replies),
        tree=sum(row.prompt + sum(row.replies) for row in rows),
        longest=longest,
        predicted=sum(replies),
        example=longest if isinstance(settings, SFTConfig) else max(row.prompt for row in rows),
        shared=getattr(settings, "method", None) is not PreferenceMethod.orpo,
    )


def _reinforce(settings: ReinforceConfig, hardware: Hardware, rows: Sequence[Lengths]) -> Batch:
    prompts = [row.prompt for row in _repeated(rows or [Lengths(UNKNOWN_PROMPT)], settings.batch_size)]
    new = settings.max_new_tokens
    completions = settings.batch_size * settings.group_size
    return _batch(
        settings,
        hardware,
        sequences=completions,
        tree=sum(prompts) + completions * new,
        longest=max(prompts) + new,
        example=max(prompts),
        predicted=completions * new,
        completions=completions * settings.grad_accum,
        new_tokens=new,
        prompt=max(prompts),
    )


def _batch(
    settings: TrainingConfig,
    hardware: Hardware,
    *,
    sequences: int,
    tree: int,
    longest: int,
    example: int,
    shared: bool = True,
    **other: Any,
) -> Batch:
    """A tree where one is used, else a padded batch."""
    padded = sequences * longest
    used = settings.shared_prefix and shared and (hardware.device == "cpu" or tree <= WORTH_IT * padded)
    return Batch(
        tokens=tree if used else padded,
        longest=longest,
        tree=used,
        whole_logits=not shared,
        compared=example if settings.shared_prefix and shared else 0,
        **other,
    )


def _repeated(rows: Sequence[Lengths], number: int) -> list[Lengths]:
    """As many rows as a micro-batch has; where there are fewer, the longest comes again."""
    return [*rows[:number], *[rows[0]] * (number - len(rows))]


def _cut(row: Lengths, limit: int) -> Lengths:
    """A row as it is after `max_length`."""
    prompt = min(row.prompt, limit)
    return Lengths(prompt, tuple(min(reply, max(0, limit - prompt)) for reply in row.replies))
