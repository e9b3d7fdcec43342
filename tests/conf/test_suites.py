"""Where a suite's scores come from is said once, and said clearly when it is not."""

from typing import Any

import pytest

from conf.errors import ConfigError
from conf.loader import load
from conf.rewards import load_rewards
from conf.schema import SuiteConfig
from conf.suites import JudgeConfig

JUDGE = {"url": "http://localhost:8000/v1", "model": "big"}
TASKS = {"tasks": ["arc_easy"]}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "s.data: is required"),
    ({"reward": "r"}, "s.data: is required"),
    ({"data": "d"}, "s.reward: is required"),
    ({"data": "d", "reward": "r", "judge": JUDGE}, "s.judge: scores in place of a reward"),
    ({"lm_eval": TASKS, "data": "d"}, "s.data: goes without lm_eval"),
    ({"lm_eval": TASKS, "judge": JUDGE}, "s.judge: goes without lm_eval"),
    ({"lm_eval": TASKS, "max_rows": 5}, "s.max_rows: goes without lm_eval"),
    ({"lm_eval": {}}, "s.lm_eval.tasks: is required"),
    ({"lm_eval": {"tasks": []}}, "s.lm_eval.tasks: name one task or more"),
    ({"lm_eval": {"tasks": ["a"], "fewshot": 1}}, "s.lm_eval.fewshot: unknown key; did you mean 'num_fewshot'?"),
    ({"data": "d", "judge": {**JUDGE, "url": "localhost:8000"}}, "s.judge.url: expected the address"),
    ({"data": "d", "judge": {**JUDGE, "url": "http://host:port/v1"}}, "s.judge.url: expected the address"),
    ({"data": "d", "judge": {**JUDGE, "url": "http://[::1/v1"}}, "s.judge.url: expected the address"),
    ({"data": "d", "judge": {**JUDGE, "url": "http://me:secret@host/v1"}}, "s.judge.url: takes no user"),
    ({"data": "d", "judge": {**JUDGE, "api_key": "sk"}}, "s.judge.api_key: unknown key; did you mean 'api_key_env'?"),
    ({"data": "d", "judge": {**JUDGE, "prompt": "{prompt} {first}"}}, "s.judge.prompt: lacks {second}"),
]


@pytest.mark.parametrize(("values", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_suite_that_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(SuiteConfig, values, "s")
    assert str(error.value).startswith(message) and "secret" not in str(error.value)


def test_suites_of_every_kind() -> None:
    load(SuiteConfig, {"data": "d", "reward": "r"})
    load(SuiteConfig, {"data": "d", "judge": JUDGE, "information": "r", "role": "general", "samples": 2})
    load(SuiteConfig, {"lm_eval": {**TASKS, "num_fewshot": 0}, "role": "general", "tolerance": 0.02})


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://host:8000", "http://host:8000/v1/chat/completions"),
        ("http://host:8000/", "http://host:8000/v1/chat/completions"),
        ("https://host/v1/", "https://host/v1/chat/completions"),
        ("https://host/openai/v1/chat/completions", "https://host/openai/v1/chat/completions"),
    ],
)
def test_the_address_of_a_judge(url: str, endpoint: str) -> None:
    assert JudgeConfig(url=url, model="m").endpoint == endpoint


def test_a_judge_is_no_reward() -> None:
    with pytest.raises(ConfigError, match=r"reward\.open: a judge is no reward"):
        load_rewards({"open": {"type": "judge", **JUDGE}})
