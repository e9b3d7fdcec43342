"""Whether the model can be asked what a pipeline will ask it: chat format, lengths, modules; no weights are loaded."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from conf.errors import UserError
from conf.training import ReinforceConfig, TrainingConfig
from stages.chat import prompt_ids, prompt_string
from stages.contract import ModelRef
from stages.models import load_tokenizer, model_config
from stages.preflight import PlannedStep, Sources, looked_at
from stages.quiet import quiet
from stages.rows import Row

_ADAPTABLE = (torch.nn.Linear, torch.nn.Embedding, Conv1D)


@dataclass(frozen=True)
class _Asked:
    """Prompts to be answered: the first rows of a file, or all; the longest reply, and the key that sets it."""

    path: Path
    rows: int | None
    key: str
    new_tokens: int


class Lengths:
    """The tokenizer and the context of a base model, and what they say to rows.

    Raises:
        UserError: The tokenizer, the configuration, the chat template or a stop token cannot be used.
    """

    def __init__(self, ref: ModelRef, sources: Sources) -> None:
        quiet()
        self._ref, self._sources = ref, sources
        self._config = model_config(ref)
        self._tokenizer = load_tokenizer(ref)
        text = self._config.get_text_config(decoder=True)
        self._context: int | None = getattr(text, "max_position_embeddings", None)
        self._bytes = functools.cache(self._sizes)
        if not prompt_string(self._tokenizer, ref.config, Row(prompt="a")):
            raise UserError(
                f"model.chat_template: the template of {ref.config.id} writes nothing for a user's message; it should "
                "write each of `messages`, and the beginning of a reply where `add_generation_prompt` is true"
            )

    def check(self, steps: Iterable[PlannedStep]) -> None:
        """See that every prompt, with the longest reply to it, fits into the model's context.

        Raises:
            UserError: Names the row and the lengths, or the setting that no row can fit.
        """
        for step in sorted(steps, key=lambda step: step.stage == "probe"):  # its settings may be another step's
            for asked in _asked(step):
                self._check_asked(asked, step.name)
            if hasattr(step.settings, "max_length"):
                self._check_max_length(step)
            if isinstance(step.settings, TrainingConfig):
                self._check_modules(step)

    def _check_asked(self, asked: _Asked, step: str) -> None:
        if self._context is None:
            return
        self._check_setting(asked.key, asked.new_tokens, self._context - 1, step)
        rows = self._sources.rows(asked.path)[: asked.rows]
        room = self._context - asked.new_tokens
        sizes = self._bytes(asked.path, asked.rows)
        suspects = [row for row, size in zip(rows, sizes, strict=True) if size > room]  # a token has a byte at least
        lengths = [self._length(row) for row in suspects]
        beyond = [(row, length) for row, length in zip(suspects, lengths, strict=True) if length > room]
        if beyond:
            row, length = beyond[0]
            others = f" (and {len(beyond) - 1} more of {len(rows)} rows)" if len(beyond) > 1 else ""
            raise UserError(
                f"{self._sources.place(asked.path, row)}: the prompt has {length} tokens, which with {asked.key} "
                f"{asked.new_tokens} go beyond the {self._context} of the context of {self._ref.config.id}{others}; "
                f"shorten it, leave it out, or lower {asked.key}"
            )

    def _check_max_length(self, step: PlannedStep) -> None:
        key, limit = f"{step.stage}.max_length", step.settings.max_length
        if self._context is not None:
            self._check_setting(key, limit, self._context, step.name)
        if not step.data:
            return
        path = step.data["train"]
        rows, sizes = self._sources.rows(path), self._bytes(path, None)
        if self._length(rows[sizes.index(min(sizes))]) < limit:
            return
        shortest = min(map(self._length, rows))
        if shortest >= limit:
            raise UserError(
                f"{key}: {limit} leaves no room for a reply in any of the {len(rows)} training rows of "
                f"{self._sources.source(path)} (step {step.name!r}); the shortest prompt has {shortest} tokens"
            )

    def _check_setting(self, key: str, tokens: int, most: int, step: str) -> None:
        if tokens > most:
            raise UserError(
                f"{key}: must be at most {most} (step {step!r}), got {tokens}: the context of {self._ref.config.id} "
                f"has {self._context} tokens"
            )

    def _check_modules(self, step: PlannedStep) -> None:
        names = step.settings.lora.target_modules
        if names == ["all-linear"]:
            return
        modules = self._modules
        for name in names:
            if not any(module == name or module.endswith(f".{name}") for module in modules):
                known = dict.fromkeys(module.rpartition(".")[2] for module in modules)
                raise UserError(
                    f"{step.stage}.lora.target_modules: {self._ref.config.id} has no linear layer {name!r} "
                    f"(step {step.name!r}); it has {', '.join(known)}, and all-linear means every one but the head"
                )

    @functools.cached_property
    def _modules(self) -> list[str]:
        """The linear layers, from a model without memory for its weights."""
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self._config, trust_remote_code=self._ref.config.trust_remote_code)
        return [name for name, module in model.named_modules() if isinstance(module, _ADAPTABLE)]

    def _length(self, row: Row) -> int:
        return len(prompt_ids(self._tokenizer, self._ref.config, row))

    def _sizes(self, path: Path, first: int | None) -> Sequence[int]:
        """Bytes of the rendered prompts, which is much quicker than their tokens."""
        sizes = []
        for row in self._sources.rows(path)[:first]:
            try:
                sizes.append(len(prompt_string(self._tokenizer, self._ref.config, row).encode()))
            except UserError as error:
                raise UserError(f"{self._sources.place(path, row)}: {error}") from None
        return sizes


def _asked(step: PlannedStep) -> Iterator[_Asked]:
    """The prompts that a step will have answered."""
    settings: Any = step.settings
    if step.data and step.stage in ("pairs", "probe", "reinforce"):
        tokens = settings.max_new_tokens or ReinforceConfig.max_new_tokens
        first = getattr(settings, "max_prompts", None)
        yield _Asked(step.data["train"], first, f"{step.stage}.max_new_tokens", tokens)
        if looked_at(step):
            yield _Asked(step.data["select"], looked_at(step), f"{step.stage}.max_new_tokens", tokens)
    if step.data and isinstance(settings, TrainingConfig):
        key = f"{step.stage}.sample_max_new_tokens"
        yield _Asked(step.data["select"], settings.n_samples, key, settings.sample_max_new_tokens)
    for name, suite in step.suites.items():
        if suite.lm_eval is None:  # lm-eval sees to lengths itself
            yield _Asked(suite.rows, suite.max_rows, f"suite.{name}.max_new_tokens", suite.max_new_tokens)
