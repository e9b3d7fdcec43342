"""The DAG: its order, the gaps that left-out steps leave, and everything that makes it no DAG."""

import pytest

from conf.errors import ConfigError
from conf.loader import dump
from conf.pipeline import STAGES, load_pipeline
from conf.run import check_pins, load_run

FULL = {
    "evaluate": {"stage": "evaluate", "start": "reinforce", "baseline": "base"},
    "reinforce": {
        "stage": "reinforce",
        "start": "preference",
        "data": "sums",
        "reward": "sums",
        "audit": False,  # what these add is in test_checks
        "probe": False,
    },
    "sft": {"stage": "sft", "data": "sums"},
    "pairs": {"stage": "pairs", "start": "sft", "data": "sums", "reward": "sums"},
    "preference": {"stage": "preference", "start": "sft", "data": {"from": "pairs"}},
}
SECTIONS = {name: dump(kind.config()) for name, kind in STAGES.items()}


def parse(changes=None):
    return load_pipeline({**FULL, **(changes or {})}, SECTIONS)


def test_steps_come_in_an_order_in_which_each_finds_what_it_needs():
    assert list(parse()) == ["sft", "pairs", "preference", "reinforce", "evaluate"]


def test_a_left_out_step_is_bridged():
    steps = parse({"preference": {**FULL["preference"], "skip": True}})
    assert steps["reinforce"].start == "sft"
    assert "preference" not in steps


def test_two_left_out_steps_in_a_row_are_bridged():
    skipped = {name: {**FULL[name], "skip": True} for name in ("preference", "reinforce")}
    assert parse(skipped)["evaluate"].start == "sft"


def test_branches_and_after_edges():
    second = {**FULL["reinforce"], "start": "sft", "after": ["reinforce"], "set": {"beta": 0.5}}
    steps = parse({"second": second, "evaluate": {**FULL["evaluate"], "models": ["second"]}})
    assert list(steps) == ["sft", "pairs", "preference", "reinforce", "second", "evaluate"]


BAD = [
    ({"sft": {"stage": "stf", "data": "sums"}}, "pipeline.sft.stage: unknown stage 'stf'; known: audit, evaluate,"),
    ({"sft": {"stage": "sft"}}, "pipeline.sft: a sft step needs 'data'"),
    ({"sft": {**FULL["sft"], "start": "preference"}}, "wait for each other in a cycle"),
    ({"sft": {**FULL["sft"], "start": "sft"}}, "wait for each other in a cycle"),
    ({"sft": {**FULL["sft"], "start": "warmup"}}, "pipeline.sft: there is no step 'warmup'; steps:"),
    ({"sft": {**FULL["sft"], "strat": "base"}}, "pipeline.sft.strat: unknown key; did you mean 'start'?"),
    (
        {"sft": {**FULL["sft"], "data": ["sums"]}},
        "pipeline.sft.data: expected the name of a data source, or {from: <step>}",
    ),
    ({"preference": {**FULL["preference"], "data": {"from": "sft"}}}, "step 'sft' (sft) makes no rows"),
    ({"pairs": {**FULL["pairs"], "skip": True}}, "takes its rows from 'pairs', which is left out"),
    ({"reinforce": {**FULL["reinforce"], "set": {"beta": -1}}}, "pipeline.reinforce.set.beta: must be at least 0"),
    ({"reinforce": {**FULL["reinforce"], "set": {"bta": 1}}}, "did you mean 'beta'?"),
    ({"base": FULL["sft"]}, "pipeline.base: a step cannot be called that"),
    ({"warmup": {"skip": True}}, "pipeline.warmup: unknown key"),
    ({"sft": "sft"}, "pipeline.sft: expected a mapping, got text"),
    ({"preference": {**FULL["preference"], "data": {"from": 3}}}, "or {from: <step>}; got {'from': 3}"),
    ({"preference": {**FULL["preference"], "data": {"from": "base"}}}, "there is no step 'base'"),
    ({"preference": {**FULL["preference"], "data": {"from": ""}}}, "there is no step ''"),
    ({"sft": {**FULL["sft"], "after": ["run/x"]}}, "there is no step 'run/x'"),
    ({"sft": {**FULL["sft"], "models": ["base"]}}, "pipeline.sft.models: a sft step takes no models"),
    ({"sft": {**FULL["sft"], "reward": "sums"}}, "pipeline.sft.reward: a sft step takes no reward"),
    ({"a:b": FULL["sft"]}, "pipeline.a:b: a step cannot be called that"),
    ({"a, b?": FULL["sft"]}, "pipeline.a, b?: a step cannot be called that"),
    ({"evaluate": {**FULL["evaluate"], "baseline": "old:base"}}, "pipeline.evaluate.baseline: is called baseline in"),
    *(
        ({"evaluate": {**FULL["evaluate"], "models": [edge]}}, f"- and /; got {edge!r}")
        for edge in ("best:sft", "best:champion", ":run/x", "the best:run/x")
    ),
    (
        {"evaluate": {**FULL["evaluate"], "models": ["old:run/x", "old:run/y"]}},
        "pipeline.evaluate.models: run/x and run/y are both called 'old'",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message for _, message in BAD])
def test_what_is_no_pipeline_is_refused_by_name(changes, message):
    with pytest.raises(ConfigError) as caught:
        parse(changes)
    assert message in str(caught.value)


def run_config(**pipeline):
    numeric = {"numeric": {"type": "numeric"}}
    suite = {"sums": {"data": "sums", "reward": "sums"}}
    data = {"sums": {"source": "rows.jsonl"}}
    return load_run({"pipeline": {**FULL, **pipeline}, "reward": {"sums": numeric}, "suite": suite, "data": data})


def test_a_step_setting_beats_its_section():
    config = run_config(reinforce={**FULL["reinforce"], "set": {"beta": 0.5, "lora": {"r": 4}}})
    settings = config.settings["reinforce"]
    assert (settings.beta, settings.lora.r, settings.lora.alpha) == (0.5, 4, 32.0)


@pytest.mark.parametrize("key", ["reinforce.beta", "reinforce.lora.r", "reinforce.lora", "reinforce"])
def test_an_override_of_a_pinned_setting_is_refused(key):
    config = run_config(reinforce={**FULL["reinforce"], "set": {"beta": 0.5, "lora": {"r": 4}}})
    with pytest.raises(ConfigError, match=r"step 'reinforce' pins this setting; override pipeline.reinforce.set"):
        check_pins(config, ["experiment", key])


def test_other_overrides_are_not():
    config = run_config(reinforce={**FULL["reinforce"], "set": {"beta": 0.5, "lora": {"r": 4}}})
    check_pins(config, ["reinforce.lora.alpha", "reinforce.group_size", "pipeline.reinforce.set.beta"])


def test_names_of_data_rewards_and_suites_must_exist():
    with pytest.raises(ConfigError, match=r"pipeline.sft.data: no data is named 'nums' \(there are: sums\)"):
        run_config(sft={"stage": "sft", "data": "nums"})
    with pytest.raises(ConfigError, match=r"pipeline.reinforce.reward: no reward is named 'other'"):
        run_config(reinforce={**FULL["reinforce"], "reward": "other"})
    with pytest.raises(ConfigError, match=r"pipeline.evaluate.suites: no suite is named 'other'"):
        run_config(evaluate={**FULL["evaluate"], "suites": ["other"]})


@pytest.mark.parametrize("name", ["", "..", "a/b", "-m"])
def test_a_name_that_is_no_directory_name_is_refused(name):
    with pytest.raises(ConfigError, match=r"name: becomes a directory's"):
        load_run({"pipeline": FULL, "name": name})


def test_a_group_file_without_its_package_line_is_recognised():
    with pytest.raises(ConfigError, match=r"conf/data/NAME.yaml starts with the line '# @package data.NAME'"):
        load_run({"pipeline": FULL, "data": {"source": "rows.jsonl"}})
    with pytest.raises(ConfigError, match=r"conf/reward/NAME.yaml starts with the line '# @package reward.NAME'"):
        load_run({"pipeline": FULL, "reward": {"right": {"type": "exact"}}})


def gated(general="general", suites=(), **gate):
    """A configuration whose gate looks at a task and at one more suite, or at those that are named."""
    configs = {
        "sums": {"data": "sums", "reward": "sums"},
        general: {"data": "sums", "reward": "sums", "role": "general"},
    }
    return load_run(
        {
            "data": {"sums": {"source": "sums.csv"}},
            "reward": {"sums": {"right": {"type": "exact"}}},
            "suite": configs,
            "pipeline": {"gate": {"stage": "gate", "baseline": "base", "suites": list(suites)}},
            "gate": gate,
        }
    )


def test_a_ceiling_of_drift_needs_prompts_to_measure_it_on():
    assert gated(max_drift=0.1).settings["gate"].max_drift == 0.1
    for settings in ({"drift_rows": 0}, {"suites": ["sums"]}):
        with pytest.raises(ConfigError, match=r"pipeline.gate: gate.max_drift needs a suite with role: general"):
            gated(max_drift=0.1, **settings)


def test_a_suite_is_not_called_like_a_measure():
    with pytest.raises(ConfigError, match=r"suite.drift: this name is a measure's \(rows, gain, noise, drift"):
        gated(general="drift")


@pytest.mark.parametrize("name", ["a.b", "a, b?", ""])
def test_a_suite_is_called_what_a_metric_can_be(name):
    with pytest.raises(ConfigError, match=r"suite\..*: becomes a metric's name; use letters, digits, _ and -"):
        gated(general=name)
    gated(general="gué-1")
