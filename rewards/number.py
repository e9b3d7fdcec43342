"""Numbers as people and models write them, read exactly (as fractions) so that comparing loses nothing.

A numeral may have a sign (`+`, `-`, U+2212), a currency sign on either side, thousands separators (commas in
well-formed groups of three), decimals (also `.5`) and an exponent. Two integers joined by a slash are a fraction.
A hyphen after a digit, a letter, `%` or a closing bracket is no sign: `5-3` ends in 3, `2024-01-15` in 15.
Units and `%` are ignored. European `1.234,5` is not understood.
"""

import math
import re
from fractions import Fraction
from typing import Any

_CURRENCY = "$€£¥₹¢₩₽₺₪฿"
_GROUPED = r"(?<!\d,)[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)"
_NUMBER = re.compile(
    rf"""
    (?=[-+.\d{_CURRENCY}])  # nothing else can begin a number: fails fast
    (?P<sign>(?<![\w%)\]])(?<!\d[{_CURRENCY}])[-+])?
    [{_CURRENCY}]?
    (?:
        # a/b of two integers, neither of them part of a date, a decimal or a longer chain
        (?<!/)(?P<over>{_GROUPED}|\d+)/(?P<under>[-+]?(?:{_GROUPED}|\d+))(?!\d|[.,/]\d|[eE][-+]?\d)
        |
        (?P<decimal>(?:{_GROUPED}|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)(?P<exponent>[eE][-+]?\d+)?
    )
    """,
    re.VERBOSE,
)
_LONGEST = 400
"""Digits and exponent beyond which a number counts as infinite, so that a runaway numeral costs no time or memory."""

Number = Fraction | float
"""A fraction, or plus or minus infinity for what is too large to be meant."""


def last_number(text: str) -> Number | None:
    """The last number of a text, or None when it has none."""
    matches = list(_NUMBER.finditer(text.replace("\u2212", "-")))
    return _value(matches[-1]) if matches else None


def exactly(value: Any) -> Number | None:
    """A number of Python's own, or the last one of a text, or None."""
    if isinstance(value, str):
        return last_number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float):
        return Fraction(repr(value)) if math.isfinite(value) else value
    return Fraction(value)


def close(value: Number, reference: Number, tolerance: float) -> bool:
    """Whether two numbers differ by at most `tolerance` times the reference; nothing is close to infinity."""
    if not isinstance(value, Fraction) or not isinstance(reference, Fraction):
        return False
    return abs(value - reference) <= Fraction(repr(tolerance)) * abs(reference)


def written(value: Number | None) -> str:
    """A number as explanations show it."""
    if not isinstance(value, Fraction):
        return str(value)
    try:
        return f"{float(value):.12g}" if value.denominator != 1 else str(value)
    except (OverflowError, ValueError):
        return "a very large number"


def _value(match: re.Match[str]) -> Number:
    over, under = match["over"], match["under"]
    if over is not None and int(under.replace(",", "")[:_LONGEST]) == 0:
        over, under = under, "1"
    sign = -1 if match["sign"] == "-" else 1
    if over is not None:
        size = _fraction(over) / _fraction(under)
    else:
        size = _fraction(match["decimal"], match["exponent"] or "")
    return sign * size


def _fraction(numeral: str, exponent: str = "") -> Number:
    if len(numeral) > _LONGEST or len(exponent) > 6 or abs(int(exponent[1:] or "0")) > _LONGEST:
        return math.inf
    return Fraction(numeral.replace(",", "") + exponent)
