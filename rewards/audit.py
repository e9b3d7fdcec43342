"""What do policies earn that do not do the job? What they earn, a model will learn.

Every policy (`rewards.policies`) answers every row, the step's own rewards score it, and its mean total is compared
with that of the right answers, which must be the best of all and positive. Where the rows have no right answers, the
yardstick is the largest total that the rewards can give, as far as the ranges of their types are known; where not even
that is known (custom code, programs), the means are shown and nothing is judged.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from conf.measuring import AUDIT_REFERENCE, AuditConfig
from conf.reward_base import RewardConfig
from rewards.contract import Sample
from rewards.findings import Audit, Judge, Scored
from rewards.policies import Case, Completions, policies, reference_forms
from rewards.scoring import RewardSet, Score

DEFAULT_MAX_NEW_TOKENS = 64
_SCREENED_ROWS = 50
"""Rows on which the most promising of several variants are chosen."""
_PROMISING = 5


def audit(
    cases: Sequence[Case],
    configs: Mapping[str, RewardConfig],
    settings: AuditConfig,
    folder: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Audit:
    """Score the policies that do not do the job, and the right answers.

    Args:
        cases: The rows; at least one.
        configs: The rewards, by name.
        settings: Thresholds, what is acknowledged, the length limit.
        folder: What relative paths in the rewards' settings are relative to.
        progress: Told how many of how many policies are done.

    Raises:
        ConfigError: A file that a reward needs cannot be used.
        RewardError: A reward with `on_error: stop` fails on a completion; names policy and row.
    """
    with RewardSet(configs, folder) as rewards:
        scorer = _Scorer(cases, rewards)
        forms = reference_forms(cases, configs)
        references: Completions = scorer.best(AUDIT_REFERENCE, forms) if forms else [None for _ in cases]
        limit = settings.max_new_tokens or DEFAULT_MAX_NEW_TOKENS
        variants = policies(cases, references, configs, limit, folder)
        scored: dict[str, Scored] = {}
        for done, (name, several) in enumerate(variants.items()):
            progress(done, len(variants))
            if several:
                completions = scorer.best(name, several)
                scored[name] = Scored(completions, scorer.scores(name, completions))
        right = Scored(references, scorer.scores(AUDIT_REFERENCE, references)) if forms else None
    judge = Judge(cases, configs, settings, right)
    findings = [judge.policy(name, of_policy) for name, of_policy in scored.items()]
    return Audit(
        rows=len(cases),
        reference=judge.reference(scored) if right else None,
        largest=judge.largest,
        findings=findings,
        left_out=[name for name, several in variants.items() if not several],
        failed=scorer.failed,
    )


class _Scorer:
    """Scores every pair of row and completion once: rewards are pure, and policies often agree."""

    def __init__(self, cases: Sequence[Case], rewards: RewardSet) -> None:
        self._cases, self._rewards = cases, rewards
        self._known: dict[tuple[int, str], Score] = {}
        self.failed: Counter[str] = Counter()

    def scores(self, policy: str, completions: Completions) -> list[Score | None]:
        self._need(policy, completions, range(len(completions)))
        return [None if text is None else self._known[index, text] for index, text in enumerate(completions)]

    def best(self, policy: str, several: Sequence[Completions]) -> Completions:
        """The variant that earns most; the most promising on some of the rows, spread evenly, are compared on all."""
        for step, kept in ((math.ceil(len(self._cases) / _SCREENED_ROWS), _PROMISING), (1, 1)):
            if len(several) > kept:
                rows = range(0, len(self._cases), step)
                means = [self._mean(policy, completions, rows) for completions in several]
                order = sorted(range(len(several)), key=lambda index: -means[index])
                several = [several[index] for index in order[:kept]]
        return several[0]

    def _mean(self, policy: str, completions: Completions, rows: Sequence[int]) -> float:
        self._need(policy, completions, rows)
        texts = [(index, text) for index in rows if (text := completions[index]) is not None]
        return statistics.fmean(self._known[pair].total for pair in texts) if texts else -math.inf

    def _need(self, policy: str, completions: Completions, rows: Sequence[int]) -> None:
        pairs = [(index, text) for index in rows if (text := completions[index]) is not None]
        new = [pair for pair in pairs if pair not in self._known]
        samples: list[Sample] = [self._cases[index].sample(text) for index, text in new]
        scores = self._rewards.require_all(samples, lambda at: f"training row {new[at][0] + 1}, policy {policy!r}")
        self._known.update(zip(new, scores, strict=True))
        self.failed.update(name for score in scores for name in score.errors)
