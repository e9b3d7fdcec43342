"""Golden cases: `golden/<type>.json` says what each reward type gives, or with which error it fails. Add a row."""

import json
from pathlib import Path
from typing import Any

import pytest

from conf.rewards import TYPES, load_rewards
from rewards.library import BUILDERS, FILE_BUILDERS
from rewards.scoring import RewardSet, Score

GOLDEN = Path(__file__).parent / "golden"
FEWEST = {"numeric": 40, "json": 25}


def cases() -> list[Any]:
    return [
        pytest.param(file.stem, case, id=f"{file.stem}-{number}-{case['why']}")
        for file in sorted(GOLDEN.glob("*.json"))
        for number, case in enumerate(json.loads(file.read_text(encoding="utf-8")))
    ]


def score(kind: str, case: dict[str, Any], folder: Path) -> Score:
    if kind == "gym":
        pytest.importorskip("reasoning_gym", reason='needs "ratchet[gym]"')
    settings = {"type": kind, **case.get("settings", {})}
    if "source" in case:
        (folder / "reward.py").write_text(case["source"], encoding="utf-8")
        settings["path"] = "reward.py"
    rewards = RewardSet(load_rewards({"it": settings}), folder)
    return rewards.score(case.get("prompt", ""), case["completion"], case.get("reference"), case.get("row", {}))


@pytest.mark.parametrize(("kind", "case"), cases())
def test_golden_case(kind: str, case: dict[str, Any], tmp_path: Path) -> None:
    result = score(kind, case, tmp_path)
    if "error" in case:
        assert case["error"] in result.errors["it"]
        assert result.values == {}
    else:
        assert result.errors == {}
        assert result.values["it"] == pytest.approx(case["value"], abs=1e-12)
        assert result.explanations["it"]


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_every_type_has_a_function_and_golden_cases(kind: str) -> None:
    assert kind in {**BUILDERS, **FILE_BUILDERS}
    assert len(json.loads((GOLDEN / f"{kind}.json").read_text(encoding="utf-8"))) >= FEWEST.get(kind, 12)
