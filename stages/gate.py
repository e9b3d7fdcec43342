"""The gate: the start model ships when it does its task better than the baseline and nothing that is guarded worse."""

from conf.sections import GateConfig
from stages.contract import StageContext, StageResult


def run_gate(cfg: GateConfig, ctx: StageContext) -> StageResult:
    """Score the start model, the baseline and the anchor on every suite, and decide (see `stages.decision`)."""
    raise NotImplementedError
