"""One model answers one suite, and the suite's rewards score its replies: everything that determines a score is here.

The code path is that of training: the same prompts, sampling and rewards.
"""

import gc
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rewards.contract import Sample
from rewards.scoring import RewardSet, Score
from stages.chat import prompt_ids
from stages.contract import Hardware, ModelRef, StageContext, Suite
from stages.fold import Folded, load_folded
from stages.generate import Completion
from stages.identity import read_template
from stages.kept_replies import FILE
from stages.models import load_tokenizer
from stages.packed import pack
from stages.rows import Row, read_rows
from stages.samples import answer


@dataclass(frozen=True, kw_only=True)
class RowScore:
    """One reply and what it is worth.

    Attributes:
        suite: Name of the suite.
        row: Number of its row, from 0.
        sample: Number of the reply to it, from 0.
        model: Label of the model.
        score: The total of the suite's rewards.
        values: The value of every reward of the suite.
        completion: The reply.
        tokens: Its length, the end token included.
        characters: Its length as text.
        truncated: Whether it was cut.
        prompt_tokens: Length of the prompt.
        errors: By reward, why it could not score the reply (with `on_error: score`).
        information: The value of every reward that is shown for information.
    """

    suite: str
    row: int
    sample: int
    model: str
    score: float
    values: Mapping[str, float]
    completion: str
    tokens: int
    characters: int
    truncated: bool
    prompt_tokens: int
    errors: Mapping[str, str] = field(default_factory=dict)
    information: Mapping[str, float] = field(default_factory=dict)


class LoadedModel:
    """A model, folded as it would ship, ready to answer. It is loaded when it is first needed."""

    def __init__(self, ref: ModelRef, hardware: Hardware) -> None:
        self.ref, self._hardware = ref, hardware

    @property
    def key(self) -> dict[str, Any]:
        """All that determines what the model replies to a row, as plain JSON."""
        config = self.ref.config
        return {
            "model": self.ref.identity,
            "chat_template": config.chat_template and read_template(config.chat_template),
            "chat_template_kwargs": config.chat_template_kwargs,
            "stop_tokens": config.stop_tokens,
            "hardware": vars(self._hardware),
        }

    @property
    def is_loaded(self) -> bool:
        """Whether anybody needed it so far."""
        return "_folded" in vars(self)

    @cached_property
    def _folded(self) -> Folded:
        folded = load_folded(self.ref, self._hardware)
        pack(folded.model)
        return folded

    @property
    def model(self) -> PreTrainedModel:
        """The model."""
        return self._folded.model

    @property
    def receipt(self) -> dict[str, Any] | None:
        """What its fold proves about itself."""
        return self._folded.receipt

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Its tokenizer."""
        return load_tokenizer(self.ref)

    def release(self) -> None:
        """Make room for the next one: one model in memory at a time, but for the one that is kept aside."""
        vars(self).pop("_folded", None)
        gc.collect()


class OpenSuite:
    """A suite with its rows; its rewards are made ready when the first reply is scored.

    Args:
        name: Of the suite.
        suite: The suite.
        stack: Ends the workers of its rewards.
    """

    def __init__(self, name: str, suite: Suite, stack: ExitStack) -> None:
        self.name, self.suite, self._stack = name, suite, stack

    @cached_property
    def rows(self) -> list[Row]:
        """The rows that are scored."""
        return read_rows(self.suite.rows, self.suite.max_rows)

    @cached_property
    def rewards(self) -> RewardSet:
        """The rewards whose total is the score."""
        return self._stack.enter_context(RewardSet(self.suite.rewards))

    @cached_property
    def information(self) -> RewardSet:
        """The rewards that are shown beside it."""
        return self._stack.enter_context(RewardSet(self.suite.information))


def score_rows(
    model: LoadedModel, suite: OpenSuite, rows: Sequence[Row], batch_size: int, label: str, ctx: StageContext
) -> list[dict[str, Any]]:
    """Answer rows of a suite and score the replies.

    Args:
        model: Answers.
        suite: Whose rewards and limits.
        rows: The rows.
        batch_size: Prompts answered at once.
        label: Of the model, for progress and messages.
        ctx: Where finished batches are kept, the seed, and whom to tell.

    Returns:
        For every reply the fields of `RowScore`, but for the names of suite and model.

    Raises:
        RewardError: A reward fails on a reply.
    """
    greedy = suite.suite.samples == 1
    replies = answer(
        model.model,
        model.tokenizer,
        model.ref,
        rows,
        max_new_tokens=suite.suite.max_new_tokens,
        batch_size=batch_size,
        seed=ctx.seed,
        temperature=0.0 if greedy else suite.suite.temperature,
        samples=suite.suite.samples,
        progress=lambda done, total: ctx.progress(f"{suite.name}: {label}", done, total),
        keep=ctx.out_dir / FILE,
    )
    places = [(number, sample) for number in range(len(rows)) for sample in range(suite.suite.samples)]
    completions = [replies[number][sample] for number, sample in places]
    prompt_tokens = [len(prompt_ids(model.tokenizer, model.ref.config, row)) for row in rows]
    scores = _judge(suite, [rows[number].sample(replies[number][sample].text) for number, sample in places], label)
    return [
        {
            "row": number,
            "sample": sample,
            **score,
            **_measures(completion),
            "prompt_tokens": prompt_tokens[number],
        }
        for (number, sample), score, completion in zip(places, scores, completions, strict=True)
    ]


def _judge(suite: OpenSuite, samples: Sequence[Sample], label: str) -> list[dict[str, Any]]:
    def where(index: int) -> str:
        return f"suite {suite.name}, row {index // suite.suite.samples + 1}, answered by {label}"

    unscored = Score(total=0.0, values={}, errors={}, explanations={}, terms={})
    scores = [unscored] * len(samples) if suite.suite.judge else suite.rewards.require_all(samples, where)
    if not suite.suite.information:
        return [{"score": score.total, "values": score.values, "errors": score.errors} for score in scores]
    beside = suite.information.require_all(samples, where)
    return [
        {
            "score": score.total,
            "values": score.values,
            "errors": {**other.errors, **score.errors},
            "information": other.values,
        }
        for score, other in zip(scores, beside, strict=True)
    ]


def _measures(completion: Completion) -> dict[str, Any]:
    return {
        "completion": completion.text,
        "tokens": completion.tokens,
        "characters": len(completion.text),
        "truncated": completion.truncated,
    }
