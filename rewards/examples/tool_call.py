"""The staged score of a completion that should be a JSON tool call.

Getting the form right earns half; the rest are task checks (the expected tool, its arguments, a hand-off where one is
due), because a form alone is what a model learns to fill with nothing.
"""

import json
from collections.abc import Mapping
from typing import Any

from jsonschema.validators import validator_for

TOOLS = ("lookup_order", "reschedule", "handoff")
ARGUMENTS = ("order_id",)
LONGEST = 800
_MISSING = object()


def reward(completion: str, row: Mapping[str, Any]) -> float:
    """Score one completion, between -1 and 1.2.

    Args:
        completion: What the model wrote.
        row: Needs `schema`, the JSON Schema of a valid call, and `expected`, a mapping with the right `tool` and
            the arguments to compare beside it.
    """
    try:
        call = json.loads(completion)
    except (ValueError, RecursionError):
        return -1.0
    score = 0.2
    if not isinstance(call, dict) or not _is_valid(call, row["schema"]):
        return score - 0.5
    score += 0.3
    tool, expected = call.get("tool"), row["expected"]
    if tool is not None:
        score += 0.2 if tool in TOOLS else -0.5
    if tool == expected["tool"]:
        score += 0.4 if tool == "handoff" else 0.2
    score += 0.1 * _agreement(call.get("args"), expected)
    if len(completion) > LONGEST:
        score -= 0.1
    return round(score, 9)  # 1.0, not the 0.9999999999999999 of the sum


def _is_valid(call: dict[str, Any], schema: Any) -> bool:
    return bool(validator_for(schema)(schema).is_valid(call))


def _agreement(arguments: Any, expected: Mapping[str, Any]) -> float:
    """The fraction of the compared arguments that agree; one that both lack agrees."""
    if not isinstance(arguments, dict):
        return 0.0
    equal = [name for name in ARGUMENTS if arguments.get(name, _MISSING) == expected.get(name, _MISSING)]
    return len(equal) / len(ARGUMENTS)
