"""Judge suites: verdicts in both orders, answers that are kept, and an endpoint that is busy, wrong or not there."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conf.errors import OutageError, UnreachableError, UserError
from conf.measuring import EvaluateConfig
from conf.reward_base import OnError
from conf.schema import SuiteRole
from conf.suites import JudgeConfig
from conf.training import SFTConfig
from stages.contract import Adapter, Interrupted, ModelRef, StageContext, Suite
from stages.endpoint import EndpointAwayError, EndpointError
from stages.evaluate import run_evaluate
from stages.judge import check_judge, judged
from stages.rows import Row, write_rows
from stages.sft import run_sft
from stages.suite_scores import RowScore

KEY = "sk-very-secret"
PROMPT = "Q:{prompt}|{first}|{second}"
Rule = Callable[[str, str, str], str]
"""From the question and the replies as they are shown to what the judge answers."""


class Judge:
    """A server of its own: answers by a rule, after the statuses that stand in its way."""

    def __init__(self) -> None:
        self.rule: Rule = longer
        self.statuses: list[int] = []
        self.body: bytes | None = None
        self.asked: list[str] = []
        self.answered: list[str] = []
        self.paths: set[str] = set()
        self.headers: list[Any] = []
        judge = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                judge.headers.append(self.headers)
                status = judge.statuses.pop(0) if judge.statuses else 200
                question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
                judge.asked.append(question)
                if status == 200 and judge.body is None:
                    judge.answered.append(question)
                self.reply(status, judge.body or chat(judge.rule(*question.split("|"))))

            def do_GET(self) -> None:
                judge.headers.append(self.headers)
                judge.paths.add(self.path)
                status = judge.statuses.pop(0) if judge.statuses else 405
                self.reply(status, judge.body or b"ask with POST")

            def reply(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Retry-After", "0")
                self.send_header("Location", f"http://127.0.0.1:{judge.port}/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def config(self, **changes: Any) -> JudgeConfig:
        return JudgeConfig(url=f"http://127.0.0.1:{self.port}/v1", model="rule", prompt=PROMPT, **changes)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def longer(_: str, first: str, second: str) -> str:
    """The longer reply is better."""
    return f"[[A]] or [[B]]? [[{'A' if len(first) > len(second) else 'B' if len(second) > len(first) else 'C'}]]"


def chat(content: str) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode()


@pytest.fixture
def judge() -> Iterator[Judge]:
    server = Judge()
    yield server
    server.close()


REPLIES = {"base": ["aa", "bb", "cc", "dd"], "sft": ["aaa", "b", "xx", "dd"], "start": ["a", "bbb", "cc", "ddd"]}
"""Of every model to four prompts."""


@pytest.fixture
def ctx(tmp_path: Path, context: Any, tiny: ModelRef) -> Callable[..., StageContext]:
    """Contexts with one judge suite of four rows, which share kept scores."""
    rows = write_rows(tmp_path / "rows.jsonl", [Row(prompt=f"{n}?", system="Be {second}.") for n in range(4)])

    def make(name: str, judge: JudgeConfig, **changes: Any) -> StageContext:
        suite = Suite(role=SuiteRole.task, rows=rows, rewards={}, judge=judge)
        models = {"start": models_by_label(tiny)["start"], "baseline": tiny}
        made: StageContext = context(name, suites={"open": suite}, models=models, scores=tmp_path / "scores", **changes)
        return made

    return make


def models_by_label(tiny: ModelRef) -> dict[str, ModelRef]:
    return {
        label: replace(tiny, adapters=tuple(Adapter(path=Path(name), sha256=name) for name in adapters))
        for label, adapters in {"base": "", "sft": "a", "start": "ab"}.items()
    }


def verdicts(ctx: StageContext, tiny: ModelRef) -> dict[str, list[float]]:
    """Scores by model; every score is also the value of `judge`."""
    rows = judged(unscored(), models_by_label(tiny), ctx)
    assert all(row.values == {"judge": row.score} for row in rows)
    return {label: [row.score for row in rows if row.model == label] for label in REPLIES}


def unscored() -> list[RowScore]:
    return [
        RowScore(
            suite="open",
            row=number,
            sample=0,
            model=label,
            score=0.0,
            values={},
            completion=reply,
            tokens=1,
            characters=len(reply),
            truncated=False,
            prompt_tokens=1,
        )
        for label, replies in REPLIES.items()
        for number, reply in enumerate(replies)
    ]


EXPECTED = {"base": [0.5] * 4, "sft": [1.0, 0.0, 0.5, 0.5], "start": [0.0, 1.0, 0.5, 1.0]}


def test_every_model_against_the_baseline_in_both_orders(judge: Judge, ctx: Any, tiny: ModelRef) -> None:
    assert verdicts(ctx("once", judge.config()), tiny) == EXPECTED
    assert len(judge.asked) == 2 * (3 + 3)  # equal replies are a tie without a question
    assert {"Q:Be {second}.\n\n0?|aaa|aa", "Q:Be {second}.\n\n0?|aa|aaa"} <= set(judge.asked)


@pytest.mark.parametrize("position", "AB")
def test_a_judge_that_prefers_a_position_sees_only_ties(position: str, judge: Judge, ctx: Any, tiny: ModelRef) -> None:
    judge.rule = lambda *_: f"[[{position}]]"
    assert verdicts(ctx("biased", judge.config()), tiny) == {label: [0.5] * 4 for label in REPLIES}
    assert len(judge.asked) == 12


def test_nothing_is_asked_twice(judge: Judge, ctx: Any, tiny: ModelRef, tmp_path: Path) -> None:
    judge.body = b"a proxy's page"
    with pytest.raises(EndpointError, match="something else than a chat completion: a proxy's page"):
        verdicts(ctx("broken", judge.config(concurrency=1)), tiny)
    judge.body = None
    stops = iter([False, False, True])
    with pytest.raises(Interrupted):
        verdicts(ctx("stopped", judge.config(concurrency=1), stopping=lambda: next(stops)), tiny)
    (kept,) = (tmp_path / "scores").glob("answers-*.jsonl")
    with kept.open("a") as file:
        file.write('\n{"question": "torn')
    assert verdicts(ctx("again", judge.config()), tiny) == EXPECTED
    assert len(judge.answered) == len(set(judge.answered)) == 12
    asked = len(judge.asked)
    assert verdicts(ctx("known", judge.config(attempts=1)), tiny) == EXPECTED
    assert len(judge.asked) == asked
    assert verdicts(ctx("other", replace(judge.config(), model="other")), tiny) == EXPECTED
    assert len(judge.asked) == asked + 12


def test_a_busy_endpoint_is_asked_again(judge: Judge, ctx: Any, tiny: ModelRef) -> None:
    judge.statuses = [429, 503, 200, 429]
    assert verdicts(ctx("busy", judge.config(concurrency=1)), tiny) == EXPECTED
    judge.statuses = [429, 500, 503]
    with pytest.raises(EndpointAwayError) as error:
        verdicts(ctx("down", replace(judge.config(attempts=3, concurrency=1), model="other")), tiny)
    assert "suite.open.judge: " in str(error.value) and "answered 503" in str(error.value)
    assert "(attempt 3 of 3); answers so far are kept, and the same command asks for" in str(error.value)


def test_a_refusal_is_final_and_no_redirect_is_followed(judge: Judge, ctx: Any, tiny: ModelRef) -> None:
    for status in (400, 302):
        judge.statuses, judge.asked = [status] * 2, []
        with pytest.raises(EndpointError, match=f"answered {status}") as error:
            verdicts(ctx(str(status), judge.config(concurrency=1)), tiny)
        assert not isinstance(error.value, OutageError)
        assert len(judge.asked) == 1
    assert not judge.paths


def test_an_answer_without_a_verdict(judge: Judge, ctx: Any, tiny: ModelRef) -> None:
    judge.rule = lambda question, *shown: "Both are fine." if "0?" in question else longer(question, *shown)
    with pytest.raises(EndpointError) as error:
        verdicts(ctx("stop", judge.config()), tiny)
    assert "suite.open.judge: row 1, answered by sft: " in str(error.value) and "'Both are fine.'" in str(error.value)
    tolerant = ctx("score", judge.config(on_error=OnError.score))
    rows = judged(unscored(), models_by_label(tiny), tolerant)
    assert [(row.model, row.row) for row in rows if row.errors] == [("sft", 0), ("start", 0)]
    assert all(row.score == 0.5 for row in rows if row.errors)
    judge.rule = longer
    assert verdicts(ctx("mended", judge.config()), tiny) == EXPECTED, "what was no verdict is not kept for one"


def test_the_key_is_sent_and_never_said(
    judge: Judge, ctx: Any, tiny: ModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = judge.config(api_key_env="JUDGE_KEY", concurrency=1)
    with pytest.raises(UserError, match=r"suite\.open\.judge\.api_key_env: the environment has no JUDGE_KEY"):
        check_judge("open", config)
    monkeypatch.setenv("JUDGE_KEY", KEY)
    judge.rule = lambda *shown: f"{KEY} {longer(*shown)}"
    assert verdicts(ctx("keyed", config), tiny) == EXPECTED
    assert {headers["Authorization"] for headers in judge.headers} == {f"Bearer {KEY}"}
    judge.body = f"bad key {KEY}".encode()
    judge.statuses = [401, 401]
    with pytest.raises(UserError) as refused:
        check_judge("open", config)
    with pytest.raises(EndpointError) as failed:
        verdicts(ctx("refused", replace(config, model="other")), tiny)
    for error in (refused, failed):
        assert "answered 401: bad key ***" in str(error.value)
    assert not any(KEY in path.read_text() for path in tmp_path.rglob("*.jsonl"))


def test_whether_anybody_answers(judge: Judge) -> None:
    check_judge("open", judge.config())
    judge.close()
    with pytest.raises(
        UnreachableError, match=r"suite\.open\.judge\.url: nobody answers at http://127\.0\.0\.1:\d+/v1/chat"
    ):
        check_judge("open", judge.config())


def test_an_evaluation_with_a_judge(judge: Judge, context: Any, tiny: ModelRef) -> None:
    lesson = write_rows(context.folder / "lesson.jsonl", [Row(prompt=f"{n}?", response="7") for n in range(8)])
    cfg = SFTConfig(batch_size=8, max_steps=15, learning_rate=2e-2, n_samples=0)
    trained = run_sft(cfg, context("sft", data={**context.defaults["data"], "train": lesson})).model
    judge.rule = lambda _, first, second: "[[A]]" if first == "7" else "[[B]]" if second == "7" else "[[C]]"
    suite = Suite(role=SuiteRole.task, rows=lesson, rewards={}, judge=judge.config(), max_new_tokens=3)
    models = {"start": trained, "baseline": tiny}
    result = run_evaluate(EvaluateConfig(), context("evaluate", models=models, suites={"open": suite}))
    assert (result.metrics["open.base"], result.metrics["open.start"]) == (0.5, 1.0)
    assert result.metrics["gain.open.start"] == 0.5 and result.metrics["noise.open"] == 0
