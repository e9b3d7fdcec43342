"""Judge suites: a model behind an endpoint compares every reply with the baseline's, for goals no code can check.

It sees the two in both orders, because judges favour a position; a verdict that changes with the order is a tie. The
score of a reply is 1 when it is better, 0 when it is worse, 0.5 for a tie; the baseline, compared with itself, has 0.5.
So the mean is the rate of wins, and differences of it go through the same decision as any other score. Never a reward:
what a judge likes can be learnt without doing the job.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conf.reward_base import OnError
from conf.suites import JudgeConfig
from stages.contract import Interrupted, ModelRef, StageContext, Suite
from stages.endpoint import Endpoint, EndpointError
from stages.rows import Row, read_rows
from stages.suite_scores import RowScore

TIE = 0.5
_VERDICT = re.compile(r"\[\[([ABC])\]\]")
_PLACE = re.compile(r"\{(prompt|first|second|reference)\}")
_FIRST_WINS = {"A": 1.0, "B": 0.0, "C": TIE}


def check_judge(name: str, config: JudgeConfig) -> None:
    """See that the judge can be asked.

    Raises:
        UserError: Its key is not in the environment or is refused, or nobody answers at its address.
    """
    Endpoint(f"suite.{name}.judge", config, Path()).check()


def judged(rows: Sequence[RowScore], models: Mapping[str, ModelRef], ctx: StageContext) -> list[RowScore]:
    """The rows, those of judge suites with what the judge says in place of their score.

    Args:
        rows: Of every model on every suite.
        models: The models, by label.
        ctx: Its `baseline` is what all are compared with.

    Raises:
        EndpointError: The judge does not answer, or without a verdict.
    """
    scores: dict[tuple[str, str, int, int], RowScore] = {}
    for name, suite in ctx.suites.items():
        if suite.judge is not None:
            own = [row for row in rows if row.suite == name]
            baseline = next(label for label, ref in models.items() if ref.identity == ctx.models["baseline"].identity)
            scores |= {_place(row): row for row in _compare(name, suite, suite.judge, own, baseline, ctx)}
    return [scores.get(_place(row), row) for row in rows]


def _place(row: RowScore) -> tuple[str, str, int, int]:
    return row.suite, row.model, row.row, row.sample


@dataclass(frozen=True)
class _Pair:
    """A reply, and the baseline's to the same prompt."""

    row: Row
    reply: RowScore
    other: str

    def questions(self, prompt: str) -> tuple[str, str]:
        """What the judge is asked, in either order."""
        replies = self.reply.completion, self.other
        return _filled(prompt, self.row, *replies), _filled(prompt, self.row, *reversed(replies))


def _compare(
    name: str, suite: Suite, config: JudgeConfig, scores: Sequence[RowScore], baseline: str, ctx: StageContext
) -> Iterator[RowScore]:
    """Scores of all replies; equal ones are a tie that nobody needs to be asked for."""
    rows = read_rows(suite.rows)
    others = {(score.row, score.sample): score.completion for score in scores if score.model == baseline}
    pairs = [_Pair(rows[score.row], score, others[score.row, score.sample]) for score in scores]
    unlike = [pair for pair in pairs if pair.reply.completion != pair.other]
    yield from (_scored(pair.reply, TIE) for pair in pairs if pair.reply.completion == pair.other)
    questions = [question for pair in unlike for question in pair.questions(config.prompt)]

    def answered(count: int) -> None:
        ctx.progress(f"{name}: judge", count, len(questions))
        if ctx.stopping():
            raise Interrupted(f"{name}: the judge was asked {count} of {len(questions)} questions")

    endpoint = Endpoint(f"suite.{name}.judge", config, ctx.scores or ctx.out_dir)
    answers = endpoint.answers(questions, answered, lambda answer: bool(_VERDICT.search(answer)))
    for pair, first, second in zip(unlike, answers[::2], answers[1::2], strict=True):
        yield _verdict(name, config, pair, first, second)


def _verdict(name: str, config: JudgeConfig, pair: _Pair, first: str, second: str) -> RowScore:
    found = [_VERDICT.findall(answer) for answer in (first, second)]
    if not all(found):
        answer = " ".join((second if found[0] else first).split())[-200:]
        problem = f"its answer has no verdict [[A]], [[B]] or [[C]]: {answer!r}"
        if config.on_error is OnError.stop:
            raise EndpointError(
                f"suite.{name}.judge: row {pair.reply.row + 1}, answered by {pair.reply.model}: {problem}; ask for one "
                "in the prompt, raise max_tokens, or count such rows as ties with on_error: score"
            )
        return _scored(pair.reply, TIE, {"judge": problem})
    forward, backward = _FIRST_WINS[found[0][-1]], 1.0 - _FIRST_WINS[found[1][-1]]
    return _scored(pair.reply, forward if forward == backward else TIE)


def _scored(reply: RowScore, score: float, errors: Mapping[str, str] | None = None) -> RowScore:
    return replace(reply, score=score, values={"judge": score}, errors={**reply.errors, **(errors or {})})


def _filled(template: str, row: Row, first: str, second: str) -> str:
    """The judge's prompt; what is put in is not looked at for places again."""
    texts = {
        "prompt": "\n\n".join(message["content"] for message in row.conversation),
        "reference": "" if row.reference is None else str(row.reference),
        "first": first,
        "second": second,
    }
    return _PLACE.sub(lambda found: texts[found[1]], template)
