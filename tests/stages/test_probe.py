"""The probe: what counts as success, what it decides, and what it leaves."""

import json
import time
from typing import Any

import pytest

from conf.measuring import ProbeConfig
from conf.rewards import load_rewards
from rewards.contract import RewardError
from rewards.scoring import RewardSet, Score
from stages.contract import ModelRef
from stages.generate import Completion
from stages.order import wrapped_order
from stages.probe import run_probe, summary
from stages.probe_report import judge
from stages.rollouts import Rollout, TimedRewards
from stages.rows import Row, read_rows, write_rows
from stages.success import Success

SUM = {"numeric": {"type": "numeric"}, "short": {"type": "length", "max_chars": 4, "weight": 0.3}}
LETTERS = {"lower": {"type": "regex", "pattern": "[a-m]"}, "upper": {"type": "regex", "pattern": "[A-M]"}}
FAST = {"prompts": 5, "samples": 4, "max_new_tokens": 4}


def rollout(successes: list[bool] | None, totals: list[float], texts: str = "aabb") -> Rollout:
    completions = [Completion(text, tokens, tokens == 4) for text, tokens in zip(texts, (1, 2, 3, 4), strict=True)]
    scores = [Score(total, {"a": total / 2}, {}, {}, {}) for total in totals]
    return Rollout(index=0, row=Row(prompt="p"), completions=completions, scores=scores, successes=successes)


def test_a_success_is_what_the_rows_own_reference_earns() -> None:
    row = Row(prompt="3+4", reference=7)
    total = Success.of(load_rewards(SUM), None, None)
    threshold = total.threshold(row, "row 1")
    assert threshold == 1.3
    replies = ["7", "It is 7", "8", ""]
    scores = [total.rewards.require("3+4", reply, 7, {}) for reply in replies]
    assert total.reached(scores, threshold) == [True, False, False, False]
    numeric = Success.of(load_rewards(SUM), "numeric", None)
    assert numeric.reached(scores, numeric.threshold(row, "row 1")) == [True, True, False, False]
    short = Success.of(load_rewards(SUM), "short", 0.5)
    assert short.reached(scores, short.threshold(Row(prompt="x"), "row 1")) == [True, False, True, True]


def test_a_reply_to_learn_stands_in_for_a_reference_and_a_mapping_is_json() -> None:
    success = Success.of(load_rewards({"json": {"type": "json", "keys": ["tool"]}}), None, None)
    assert success.threshold(Row(prompt="p", response='{"tool": 1}'), "row 1") == 1
    assert success.threshold(Row(prompt="p", reference={"tool": "é"}), "row 1") == 1
    assert success.threshold(Row(prompt="p"), "row 1") is None
    with pytest.raises(RewardError, match="row 9, its reference as the completion: reward 'sum' failed"):
        Success.of(load_rewards({"sum": {"type": "numeric"}}), None, None).threshold(Row(reference="none"), "row 9")


def test_timed_rewards_score_like_the_whole_set() -> None:
    fails = {"type": "exact", "weight": -0.7, "on_error": "score", "error_value": 0.1}
    rewards = load_rewards({"short": SUM["short"], "fails": fails})
    row = Row(prompt="3+4", reference=[7], row={"a": 1})
    started = time.perf_counter()
    timed, whole = TimedRewards(rewards), RewardSet(rewards)
    completions = [Completion(text, 1, False) for text in ("7", "seven at last")]
    expected = [whole.require("3+4", each.text, [7], row.row) for each in completions]
    assert timed.require(row, completions, "row 1") == expected
    passed = time.perf_counter() - started
    assert all(0 < seconds < passed / 2 for seconds in timed.seconds_per_call().values())


def test_summary_of_rollouts() -> None:
    rollouts = [rollout([True, True, False, False], [2, 2, 0, 0]), rollout([False] * 4, [0, 0, 0, 0], "aaaa")]
    metrics = summary(rollouts, [2, 8])
    assert {name: metrics[name] for name in ("successes", "success_rate", "reward", "reward_a", "truncated")} == {
        "successes": 2,
        "success_rate": 0.25,
        "reward": 0.5,
        "reward_a": 0.25,
        "truncated": 0.25,
    }
    assert metrics["pass_at_1"] == 0.25
    assert metrics["pass_at_2"] == pytest.approx((1 - 1 / 6) / 2)  # of the first prompt's 6 pairs, 1 has no success
    assert metrics["pass_at_4"] == 0.5
    assert metrics["distinct"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert metrics["all_equal_2"] == pytest.approx((2 / 6 + 1) / 2) and "all_equal_2_high" not in metrics
    assert metrics["all_equal_8"] == 0.5 and "all_equal_8_high" not in metrics


def numbers(successes: int, samples: int = 104, **others: float) -> dict[str, float]:
    rate = {"successes": successes, "samples": samples, "success_rate": successes / samples}
    return {**rate, "truncated": 0.0, "distinct": 0.6, "all_equal_8": 0.3, **others}


@pytest.mark.parametrize(
    ("settings", "successes", "verdict", "words"),
    [
        ({}, 0, "stop", "Run a short `sft` first"),
        ({}, 3, "stop", "2.88% of the samples succeed (3 of 104), under min_success 3%"),
        ({}, 4, None, "there is something to reinforce"),
        ({"otherwise": "warm"}, 0, "otherwise", "Taking the step 'warm'"),
        ({"force": True}, 0, None, "Going on all the same, as probe.force says"),
        ({"force": True, "otherwise": "warm"}, 0, None, "Going on all the same"),
        ({}, 101, None, "WARNING: 97.1% of the samples succeed"),
        ({"min_success": 0.0}, 0, None, "there is something"),
    ],
)
def test_the_decision(settings: dict[str, Any], successes: int, verdict: str | None, words: str) -> None:
    found, advice = judge(ProbeConfig(**settings), numbers(successes))
    assert found == verdict and words in advice


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"all_equal_8": 0.6}, "Of groups of 8, 60% will teach nothing"),
        ({"truncated": 0.4}, "40% are cut at max_new_tokens"),
        ({"distinct": 0.2}, "raise the temperature"),
    ],
)
def test_the_recommendation_says_what_to_change(others: dict[str, float], words: str) -> None:
    assert words in judge(ProbeConfig(), numbers(20, **others))[1] and words not in judge(ProbeConfig(), numbers(20))[1]


def test_what_it_leaves(context: Any, tiny: ModelRef) -> None:
    ctx = context("probe", rewards=load_rewards(SUM))
    result = run_probe(ProbeConfig(**FAST, group_sizes=[4, 6], min_success=0.5), ctx)
    assert (result.model, result.verdict) == (tiny, "stop")  # a random model adds one-digit numbers by luck
    assert result.metrics["samples"] == 20 and result.metrics["success_rate"] <= 0.1
    assert {"pass_at_1", "pass_at_2", "pass_at_4", "all_equal_4", "all_equal_6", "seconds_short"} <= set(result.metrics)
    assert result.metrics["tokens_per_second"] > 0
    lines = [json.loads(line) for line in result.artifacts["samples"].read_text().splitlines()]
    rows = read_rows(ctx.data["train"])
    asked = [rows[index].prompt for index in wrapped_order(len(rows), 5, ctx.seed)]
    assert [line["prompt"] for line in lines[::4]] == asked, "the prompts that training takes first"
    assert json.loads(result.artifacts["probe"].read_text())["verdict"] == "stop"
    assert " of 20; 95% interval" in result.report and "Run a short `sft` first" in " ".join(result.report.split())
    assert context.progress[-1] == ("sample", 5, 5)


def test_the_same_seed_gives_the_same_samples(context: Any) -> None:
    results = [
        run_probe(ProbeConfig(**FAST, force=True), context(f"p{number}", rewards=load_rewards(SUM), seed=seed))
        for number, seed in enumerate((1, 1, 2))
    ]
    texts = [result.artifacts["samples"].read_text() for result in results]
    assert texts[0] == texts[1] != texts[2] and [result.verdict for result in results] == [None] * 3


def test_without_a_reference_the_rewards_must_tell_completions_apart(context: Any, tmp_path: Any) -> None:
    train = write_rows(tmp_path / "bare.jsonl", [Row(prompt=letter) for letter in "abcdefg"])
    cfg = ProbeConfig(**FAST)
    varied = run_probe(cfg, context("varied", rewards=load_rewards(LETTERS), data={"train": train}))
    assert varied.verdict is None and "success_rate" not in varied.metrics
    assert "give probe.success_at" in varied.report
    same = load_rewards({"any": {"type": "regex", "pattern": ".*"}})
    assert run_probe(cfg, context("same", rewards=same, data={"train": train})).verdict == "stop"
    at = ProbeConfig(**FAST, success="lower", success_at=1.0, min_success=0.01)
    found = run_probe(at, context("at", rewards=load_rewards(LETTERS), data={"train": train}))
    assert 0 < found.metrics["success_rate"] < 1
