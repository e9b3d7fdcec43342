"""What `ratchet plan` says of memory."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows import memory_plan
from flows.cli import main

PLAN = ("plan", "experiment=smoke", "sft.batch_size=2")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RATCHET_RUNS_DIR", raising=False)


def said(capsys: Any, *overrides: str) -> list[str]:
    assert main([*PLAN, *overrides]) == 0
    lines: list[str] = capsys.readouterr().out.splitlines()
    return [line for line in lines if line.startswith(("memory", "warning"))]


def test_every_step_that_trains_has_an_estimate(capsys: Any) -> None:
    (line,) = said(capsys)
    assert line.startswith("memory, estimated: sft ") and ", preference " in line and ", reinforce " in line
    assert "; cpu has " in line and "up to" not in line


def test_a_step_that_cannot_fit_is_warned_of(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "device_memory", lambda _: 2**20)
    _, *warnings = said(capsys, "model=qwen2.5-0.5b", "model.id=tiny:random", "sft.gradient_checkpointing=true")
    assert [warning.split()[1] for warning in warnings] == ["sft", "preference", "reinforce"]
    assert "sft.batch_size" in warnings[0] and "checkpointing" not in warnings[0]
    assert "reinforce.max_new_tokens" in warnings[2] and "reinforce.gradient_checkpointing=true" in warnings[2]


def test_programs_get_it_too(capsys: Any) -> None:
    assert main([*PLAN, "--json"]) == 0
    rows = {row["step"]: row["memory"] for row in json.loads(capsys.readouterr().out)}
    assert rows["pairs"] is None and rows["sft"]["fits"] and rows["sft"]["rows_known"]
    assert rows["sft"]["peak"] <= sum(rows["sft"]["parts"].values())


def test_rows_that_cannot_be_read_are_taken_to_be_as_long_as_may_be(capsys: Any) -> None:
    Path("rows.csv").write_text("a,b\n1,2\n")  # without the columns that are named
    bad = ("data.arithmetic.source=rows.csv", "~data.arithmetic.args")
    long, short = (said(capsys, *bad, f"sft.max_length={length}")[0] for length in (4000, 100))
    assert "sft up to " in long and long.split(", preference")[0] != short.split(", preference")[0]


def test_every_source_is_read_once(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read, sources = memory_plan.read_rows_of, []
    monkeypatch.setattr(memory_plan, "read_rows_of", lambda data, base: sources.append(data.source) or read(data, base))
    said(capsys)
    assert sources and len(sources) == len(set(sources))


def test_a_generator_of_the_users_own_is_not_run(capsys: Any) -> None:
    Path("mine.py").write_text("def rows():\n    print('ran', file=open('ran', 'a'))\n    yield {'a': '1'}\n")
    own = ("data.arithmetic.source=python:mine.rows", "~data.arithmetic.args")
    assert main([*PLAN, *own, "--json"]) == 0
    rows = {row["step"]: row["memory"] for row in json.loads(capsys.readouterr().out)}
    assert not rows["sft"]["rows_known"] and not Path("ran").exists()


def test_rows_that_are_not_known_are_no_certainty(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym")
    monkeypatch.setattr(memory_plan, "device_memory", lambda _: 2**20)
    line, *warnings = said(capsys, "data.arithmetic.source=gym:chain_sum", "~data.arithmetic.args")
    assert "sft up to " in line and warnings[0].startswith("warning: sft may not fit into memory")


def test_a_model_of_another_kind_has_none(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "model_shape", lambda _: None)
    assert said(capsys) == []
