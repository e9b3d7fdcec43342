"""Scores of models outside of a step: what is known is taken; what is not is computed under a lease of the device."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from conf.measuring import ScoringConfig
from flows.leases import lease
from stages.contract import ModelRef, StageContext

if TYPE_CHECKING:
    from stages.scores import Scored


def known_or_made(
    models: Mapping[str, ModelRef],
    settings: ScoringConfig,
    context: StageContext,
    holder: str,
    on_wait: Callable[[str], None],
) -> "Scored":
    """Score models on the suites of a context (see `stages.scores.score_models`).

    Args:
        models: The models by label.
        settings: How they are scored.
        context: The suites, and what stages are given besides.
        holder: Who computes, for others that wait.
        on_wait: Told whom we wait for; it ends the wait by raising.
    """
    from stages.hardware import prepare
    from stages.scores import NotKnown, score_models

    said: list[str] = []
    try:
        scored = score_models(models, settings, replace(context, say=said.append), known_only=True)
    except NotKnown:
        with lease(context.hardware, holder, on_wait):
            prepare(context.hardware, context.seed)
            return score_models(models, settings, context)
    for line in said:
        context.say(line)
    return scored
