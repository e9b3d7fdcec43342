"""What `fields` does not ask of an extraction: that it adds up, and that it admits what the document does not say.

Neither can be had without reading: amounts count only when the prompt has them, and null only when the rest is given.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rewards.parsing import parse_json

_LARGEST = 1e12
_AMOUNT = re.compile(r"(?<![\d.,])\d+[.,]\d\d(?!\d|[.,]\d)")
"""Two decimals after a point or a comma; nothing inside a date such as 21.10.2026."""


def checksum(completion: str, prompt: str) -> float:
    """1 when the total is the sum of the lines, and the prompt states all of them, each as often as they are given.

    Args:
        completion: What the model wrote: JSON with `lines`, a list of numbers, and `total`.
        prompt: The document, whose amounts have two decimals and no thousands separators.
    """
    reply = _object(completion)
    lines = reply.get("lines")
    amounts = [*lines, reply.get("total")] if isinstance(lines, list) else []
    if len(amounts) < 2 or not all(_is_amount(amount) for amount in amounts):
        return 0.0
    *cents, total = (round(amount * 100) for amount in amounts)
    stated = Counter(round(float(text.replace(",", ".")) * 100) for text in _AMOUNT.findall(prompt))
    return float(sum(cents) == total and Counter([*cents, total]) <= stated)


def absence(completion: str, reference: Mapping[str, Any]) -> float:
    """1 when null stands for just those fields that the document lacks; 0 for documents that lack none.

    Args:
        completion: What the model wrote: a JSON object.
        reference: The right fields, null for what the document does not say.
    """
    reply = _object(completion)
    lacking = {name for name, value in reference.items() if value is None}
    is_null = {name for name, value in reply.items() if value is None}
    return float(bool(lacking) and is_null == lacking and reply.keys() == reference.keys())


def _object(completion: str) -> dict[str, Any]:
    """The JSON object a completion is; an empty one when it is none."""
    try:
        reply = parse_json(completion, strict=False)
    except ValueError:
        return {}
    return reply if isinstance(reply, dict) else {}


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST
