"""Scores of models on suites, row by row: made once for every model and suite, and found again by all who ask.

(Interface; the helper `scores` fills it in.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conf.sections import ScoringConfig
from stages.contract import ModelRef, StageContext


@dataclass(frozen=True, kw_only=True)
class RowScore:
    """One reply and what it is worth.

    Attributes:
        suite: Name of the suite.
        row: Number of its row, from 0.
        sample: Number of the reply to it, from 0.
        model: Label of the model.
        score: The total of the suite's rewards.
        values: The value of every reward of the suite, and of every reward shown for information.
        completion: The reply.
        tokens: Its length, the end token included.
        characters: Its length as text.
        truncated: Whether it was cut.
        prompt_tokens: Length of the prompt.
        errors: By reward, why it could not score the reply (with `on_error: score`).
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


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What `score_models` found.

    Attributes:
        rows: Of every model on every suite, in the order of suites, models, rows, samples.
        noise: By suite, how much the start model's mean score moves when its rows are answered in other batches.
        drift: By label, the divergence from the original base in nats per token on the `general` prompts.
        receipts: By label, what the model's fold proves about itself.
    """

    rows: Sequence[RowScore]
    noise: Mapping[str, float]
    drift: Mapping[str, float]
    receipts: Mapping[str, Mapping[str, Any]]

    def of(self, suite: str, model: str) -> list[list[float]]:
        """The scores of one model on one suite: per row those of its samples."""
        raise NotImplementedError


def score_models(models: Mapping[str, ModelRef], cfg: ScoringConfig, ctx: StageContext) -> Scored:
    """Score models, given by label, on every suite of `ctx.suites`; what `ctx.scores` has is not computed again."""
    raise NotImplementedError
