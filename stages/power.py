"""What a number of rows can show: the smallest change that they could have shown, and how many rows would decide.

The decision to ship says both where it comes to none.
"""

from statistics import NormalDist

from stages.bootstrap import Differences, lower_bound

POWER = 0.8
"""Chance to show a change of the smallest detectable size, and to decide with the number of rows that is named."""
MANY = 1_000_000
"""Nobody answers more rows than this to decide."""
ROUNDING = 1e-9
"""A gain of 3 in 30 rows is a gain of 0.1, whatever the last digit of the mean."""


def detectable(half: float, confidence: float) -> float:
    """The smallest true change that is told in four of five cases by an interval of this confidence.

    Args:
        half: Half the width of the interval.
        confidence: Its two-sided confidence.
    """
    return (1 + NormalDist().inv_cdf(POWER) / NormalDist().inv_cdf((1 + confidence) / 2)) * half


def rows_needed(found: Differences, confidence: float, distance: float) -> int | None:
    """Rows with which a true change at this distance from the bound is told in four of five cases; None: there is none.

    Of the same differences on more rows, the score interval says how wide it is: with few discordant rows it shrinks
    faster than with the square root of their number.
    """
    tail = (1 - confidence) / 2

    def tells(rows: int) -> bool:
        more = found.on(rows)
        half = max(more.mean - lower_bound(more, tail), -lower_bound(more.negated, tail) - more.mean)
        return detectable(half, confidence) <= distance

    few = many = found.rows
    while not tells(many):
        if many > MANY or distance <= ROUNDING:
            return None
        few, many = many, 2 * many
    while many - few > 1 + few // 50:
        middle = (few + many) // 2
        few, many = (few, middle) if tells(middle) else (middle, many)
    return max(many, found.rows + 1)
