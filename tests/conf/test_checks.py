"""The audit and the probe that stand before every reinforce step: where they come, and what they take from it."""

import pytest

from conf.errors import ConfigError
from conf.loader import dump
from conf.pipeline import load_pipeline
from conf.run import load_run
from conf.steps import STAGES

SFT = {"stage": "sft", "data": "sums"}
REINFORCE = {"stage": "reinforce", "start": "sft", "data": "sums", "reward": "sums"}


def parse(sections=None, **steps):
    sections = {name: {**dump(kind.config()), **(sections or {}).get(name, {})} for name, kind in STAGES.items()}
    return load_pipeline({"sft": SFT, "reinforce": REINFORCE, **steps}, sections)


def test_an_audit_comes_first_and_a_probe_right_before():
    steps = parse()
    assert list(steps) == ["reinforce_audit", "sft", "reinforce_probe", "reinforce"]
    audit, probe = steps["reinforce_audit"], steps["reinforce_probe"]
    assert (audit.stage, audit.start, audit.data, audit.reward) == ("audit", "base", "sums", "sums")
    assert (probe.stage, probe.start, probe.data, probe.reward) == ("probe", "sft", "sums", "sums")
    assert steps["reinforce"].start == "reinforce_probe"


@pytest.mark.parametrize(
    ("switch", "left"),
    [
        ({"audit": False}, ["sft", "reinforce_probe", "reinforce"]),
        ({"probe": False}, ["reinforce_audit", "sft", "reinforce"]),
        ({"audit": False, "probe": False}, ["sft", "reinforce"]),
    ],
    ids=str,
)
def test_both_can_be_switched_off(switch, left):
    steps = parse(reinforce={**REINFORCE, **switch})
    assert list(steps) == left
    assert steps["reinforce"].start == ("reinforce_probe" if "reinforce_probe" in left else "sft")


@pytest.mark.parametrize("check", ["audit", "probe"])
def test_only_a_reinforce_step_has_them(check):
    with pytest.raises(ConfigError, match=rf"pipeline.sft.{check}: only a reinforce step has one before it"):
        parse(sft={**SFT, check: False})


def test_steps_that_are_there_already_are_taken():
    steps = parse(
        look={"stage": "audit", "data": "sums", "reward": "sums"},
        try_out={"stage": "probe", "start": "sft", "data": "sums", "reward": "sums"},
        reinforce={**REINFORCE, "start": "try_out"},
    )
    assert sorted(steps) == ["look", "reinforce", "sft", "try_out"]
    assert steps["reinforce"].start == "try_out"


def test_an_audit_step_comes_before_what_it_audits_wherever_it_is_declared():
    steps = list(parse(look={"stage": "audit", "data": "sums", "reward": "sums"}))
    assert steps.index("look") < steps.index("reinforce")
    late = {"stage": "audit", "start": "reinforce", "data": "sums", "reward": "sums"}
    unaudited = list(parse(look=late, reinforce={**REINFORCE, "audit": False}))
    assert unaudited.index("reinforce") < unaudited.index("look")


def test_an_audit_of_other_rewards_does_not_count():
    steps = parse(look={"stage": "audit", "data": "sums", "reward": "other"})
    assert {"look", "reinforce_audit"} <= set(steps)


@pytest.mark.parametrize("name", ["reinforce_audit", "reinforce_probe"])
def test_a_step_that_has_their_name_is_refused(name):
    with pytest.raises(ConfigError, match=rf"pipeline.{name}: is the name of a check that is added by itself"):
        parse(**{name: SFT})


def settings(changes=None, **sections):
    numeric = {"numeric": {"type": "numeric"}}
    return load_run(
        {
            "pipeline": {"sft": SFT, "reinforce": {**REINFORCE, **(changes or {})}},
            "reward": {"sums": numeric},
            "data": {"sums": {"source": "rows.jsonl"}},
            **sections,
        }
    ).settings


def test_they_take_what_they_need_from_the_reinforce_step():
    found = settings({"set": {"group_size": 6}}, reinforce={"max_new_tokens": 9, "temperature": 0.7})
    assert found["reinforce_audit"].max_new_tokens == 9
    probe = found["reinforce_probe"]
    assert (probe.max_new_tokens, probe.temperature, probe.group_sizes) == (9, 0.7, [6, 12])


def test_what_they_are_given_themselves_stays():
    found = settings(
        reinforce={"max_new_tokens": 9, "temperature": 0.7},
        audit={"max_new_tokens": 5},
        probe={"max_new_tokens": 5, "temperature": 1.5, "group_sizes": [4]},
    )
    assert found["reinforce_audit"].max_new_tokens == 5
    probe = found["reinforce_probe"]
    assert (probe.max_new_tokens, probe.temperature, probe.group_sizes) == (5, 1.5, [4])


def test_a_detour_comes_between_the_probe_that_asks_for_it_and_what_goes_on_from_the_probe():
    steps = parse({"probe": {"otherwise": "warmup"}}, warmup=SFT, reinforce={**REINFORCE, "start": "base"})
    order = list(steps)
    assert order.index("reinforce_probe") < order.index("warmup") < order.index("reinforce")
    assert "reinforce_probe" in steps["warmup"].needs()
    assert "warmup" in steps["reinforce"].needs() and steps["reinforce"].start == "reinforce_probe"


def test_a_detour_does_not_come_before_its_probe_anyway():
    steps = {"tuned": {**SFT, "start": "sft"}, "reinforce": {**REINFORCE, "start": "tuned"}}
    for early in ("tuned", "sft"):
        with pytest.raises(ConfigError, match=f"'{early}' comes before 'reinforce_probe' anyway.*start: tuned"):
            parse({"probe": {"otherwise": early}}, **steps)


def test_a_detour_must_exist_and_nobody_else_may_start_there():
    with pytest.raises(ConfigError, match="there is no step 'wramup'"):
        parse({"probe": {"otherwise": "wramup"}})
    with pytest.raises(ConfigError, match=r"pipeline.more: 'warmup' runs only when 'reinforce_probe' asks for it"):
        parse({"probe": {"otherwise": "warmup"}}, warmup=SFT, more={**SFT, "start": "warmup"})


def test_a_detour_may_start_at_the_probe_that_asks_for_it():
    steps = parse(
        try_out={"stage": "probe", "start": "sft", "data": "sums", "reward": "sums", "set": {"otherwise": "warmup"}},
        warmup={**SFT, "start": "try_out"},
        reinforce={**REINFORCE, "start": "try_out"},
    )
    assert list(steps)[-3:] == ["try_out", "warmup", "reinforce"]


@pytest.mark.parametrize("detour", ["reinforce_audit", "reinforce_probe", "look"])
def test_a_detour_must_train(detour):
    look = {"stage": "audit", "data": "sums", "reward": "other"}
    with pytest.raises(ConfigError, match=rf"probe.otherwise: step '{detour}' \((audit|probe)\) trains nothing"):
        parse({"probe": {"otherwise": detour}}, look=look)
