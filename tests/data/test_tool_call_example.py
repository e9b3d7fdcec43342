"""The staged tool-call score against the recipe's worked values."""

import pytest

from rewards.examples.tool_call import reward

CALL = {"type": "object", "required": ["tool", "args"]}
ROWS = {
    "lookup": {"schema": CALL, "expected": {"tool": "lookup_order", "order_id": "48213"}},
    "handoff": {"schema": CALL, "expected": {"tool": "handoff"}},
    "open": {"schema": {"type": "object"}, "expected": {"tool": "lookup_order", "order_id": "48213"}},
}
RIGHT = '{"tool": "lookup_order", "args": {"order_id": "48213"}}'

WORKED = [
    ("lookup", RIGHT, 1.0),
    ("lookup", '{"tool": "lookup_order", "args": {"order_id": "48214"}}', 0.9),
    ("lookup", '{"tool": "lookup_order", "args": {"order_id": 48213}}', 0.9),
    ("lookup", '{"tool": "reschedule", "args": {"order_id": "48213"}}', 0.8),
    ("lookup", '{"tool": "refund", "args": {"order_id": "48213"}}', 0.1),
    ("lookup", '{"tool": null, "args": {}}', 0.5),
    ("lookup", '{"tool": "handoff", "args": {}}', 0.7),
    ("lookup", "{}", -0.3),
    ("lookup", "[]", -0.3),
    ("lookup", 'Sure! {"tool": "lookup_order"}', -1.0),
    ("lookup", "", -1.0),
    ("lookup", RIGHT + " " * 800, 0.9),
    ("handoff", '{"tool": "handoff", "args": {}}', 1.2),
    ("handoff", '{"tool": "handoff", "args": {"order_id": "48213"}}', 1.1),
    ("handoff", '{"tool": "lookup_order", "args": {}}', 0.8),
    ("open", "{}", 0.5),
    ("open", '{"tool": "lookup_order"}', 0.9),
    # beyond the recipe's table: the edges its text names
    ("lookup", RIGHT + " " * (800 - len(RIGHT)), 1.0),
    ("handoff", '{"tool": "handoff", "args": []}', 1.1),
    ("open", "[]", -0.3),
    ("lookup", "[" * 100_000, -1.0),
]


@pytest.mark.parametrize(("row", "completion", "value"), WORKED)
def test_worked_values(row: str, completion: str, value: float) -> None:
    assert reward(completion, ROWS[row]) == value
