"""Replies that a person reads: what a model answers to held-out prompts, as `samples.jsonl`."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stages.chat import prompt_ids
from stages.contract import ModelRef
from stages.generate import Completion, generate
from stages.models import stop_token_ids
from stages.rows import Row


def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    ref: ModelRef,
    rows: Sequence[Row],
    *,
    max_new_tokens: int,
    batch_size: int,
    seed: int,
    temperature: float = 0.0,
    samples: int = 1,
    progress: Callable[[int, int], None] | None = None,
    keep: Path | None = None,
) -> list[list[Completion]]:
    """Render every row's prompt and answer it; see `stages.generate.generate`."""
    return generate(
        model,
        tokenizer,
        [prompt_ids(tokenizer, ref.config, row) for row in rows],
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        samples=samples,
        stop_ids=stop_token_ids(ref, tokenizer),
        seed=seed,
        batch_size=batch_size,
        progress=progress,
        keep=keep,
        label=ref.identity,
    )


def sample(row: Row, completion: Completion) -> dict[str, Any]:
    """One line of samples.jsonl."""
    return {
        "prompt": row.prompt_text,
        "completion": completion.text,
        "reference": expected(row),
        "truncated": completion.truncated,
    }


def expected(row: Row) -> Any:
    """What a person compares a reply with: the reference, else the reply to learn."""
    return row.reference if row.reference is not None else row.response


def write_json_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    """Write one JSON object per line; returns the path."""
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return path
