"""The audit: what policies that do not do the job earn by the rewards of a step, before anything is trained by them.

Needs no model and loads no torch; the model passes through.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conf.measuring import AuditConfig
from conf.reward_base import RewardConfig
from rewards.audit import audit
from rewards.findings import Audit
from rewards.policies import Case
from stages.audit_report import report
from stages.contract import StageContext, StageResult
from stages.rows import Row, read_rows


def run_audit(cfg: AuditConfig, ctx: StageContext) -> StageResult:
    """Audit the step's rewards on its first training rows; the verdict is `stop` when a finding stops.

    Raises:
        RewardError: A reward fails on a completion.
    """
    rows = read_rows(ctx.data["train"], cfg.max_rows)
    found = audit_rows(rows, ctx.rewards, cfg, None, lambda done, total: ctx.progress("audit", done, total))
    path = ctx.out_dir / "audit.json"
    path.write_text(json.dumps(plain(found), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return StageResult(
        model=ctx.start,
        metrics=_metrics(found),
        artifacts={"audit": path},
        verdict="stop" if found.stops else None,
        report=report(found, cfg),
    )


def audit_rows(
    rows: Sequence[Row],
    rewards: Mapping[str, RewardConfig],
    cfg: AuditConfig,
    folder: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Audit:
    """Audit rewards on prepared rows (see `rewards.audit.audit`)."""
    cases = [Case(row.prompt_text, row.reference, row.row, row.response) for row in rows]
    return audit(cases, rewards, cfg, folder, progress)


def plain(found: Audit) -> dict[str, Any]:
    """The audit as plain JSON."""
    return {**asdict(found), "verdict": "stop" if found.stops else None}


def _metrics(found: Audit) -> dict[str, float]:
    shares = {finding.policy: finding.share for finding in found.findings if finding.share is not None}
    return {
        "rows": found.rows,
        **({"reference": found.reference.mean} if found.reference else {}),
        **({"largest_share": max(shares.values())} if shares else {}),
        **{f"share.{name}": share for name, share in shares.items()},
    }
