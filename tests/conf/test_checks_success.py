"""What tells success is checked when the configuration is loaded, and `difficulty` shares it with the probe."""

import pytest

from conf.errors import ConfigError
from conf.run import check_pins, load_run

PIPELINE = {"rl": {"stage": "reinforce", "data": "sums", "reward": "sums", "audit": False}}
BASIC = {
    "pipeline": PIPELINE,
    "data": {"sums": {"source": "rows.jsonl"}},
    "reward": {"sums": {"numeric": {"type": "numeric"}, "short": {"type": "length", "max_chars": 3}}},
}
BAND = {"min_success": 0.2, "max_success": 0.8}


def test_a_reward_that_the_step_does_not_have_is_refused():
    with pytest.raises(ConfigError, match=r"probe.success: step 'rl_probe' has no reward 'sum'; .* numeric, short"):
        load_run({**BASIC, "probe": {"success": "sum"}})
    with pytest.raises(ConfigError, match=r"reinforce.difficulty.success: step 'rl' has no reward 'sum'"):
        load_run({**BASIC, "reinforce": {"difficulty": {**BAND, "success": "sum"}}})


def test_a_band_in_the_wrong_order_is_refused():
    with pytest.raises(ConfigError, match=r"reinforce.difficulty.min_success: must be at most max_success \(0.2\)"):
        load_run({**BASIC, "reinforce": {"difficulty": {"min_success": 0.5, "max_success": 0.2}}})


def test_difficulty_means_by_success_what_the_probe_does():
    run = load_run({**BASIC, "probe": {"success": "numeric"}, "reinforce": {"difficulty": BAND}})
    assert run.settings["rl"].difficulty.success == "numeric"
    own = load_run({**BASIC, "probe": {"success": "numeric"}, "reinforce": {"difficulty": {**BAND, "success_at": 1}}})
    assert (own.settings["rl"].difficulty.success, own.settings["rl"].difficulty.success_at) == (None, 1)
    assert not load_run(BASIC).settings["rl"].difficulty.leaves_out


def test_what_a_probe_takes_from_its_step_is_not_pinned():
    run = load_run({**BASIC, "probe": {"prompts": 3}})
    check_pins(run, ["probe.prompts", "reinforce.difficulty.min_success"])
    pinned = load_run({**BASIC, "pipeline": {"rl": {**PIPELINE["rl"], "set": {"difficulty": {"samples": 4}}}}})
    with pytest.raises(ConfigError, match=r"override pipeline.rl.set.difficulty.samples instead"):
        check_pins(pinned, ["reinforce.difficulty.samples"])


def test_what_the_probe_takes_for_success_is_nothing_to_a_step_that_measures_no_difficulty():
    plain, other = load_run(BASIC), load_run({**BASIC, "probe": {"success": "numeric"}})
    assert plain.settings["rl"] == other.settings["rl"]
