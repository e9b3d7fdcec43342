"""Additions: a task that a small model half knows, and whose answers code can check."""

import random
from collections.abc import Iterator

from conf.errors import UserError


def arithmetic(rows: int, seed: int, digits: int = 2) -> Iterator[dict[str, str]]:
    """Different additions of two numbers with that many digits.

    No sum comes twice, not even with its terms swapped: a held-out 41 + 28 was not trained on as 28 + 41.

    Args:
        rows: How many.
        seed: Decides which, and their order.
        digits: Digits of each term.

    Yields:
        `question` and `answer`, both text.

    Raises:
        UserError: There are not that many.
    """
    if digits < 1:
        raise UserError(f"arithmetic: digits must be at least 1, got {digits}")
    low, high = 10 ** (digits - 1), 10**digits - 1
    count = high - low + 1
    available = count * (count + 1) // 2
    if not 1 <= rows <= available:
        raise UserError(f"arithmetic: there are {available} additions with {digits} digits, not {rows} rows")
    generator = random.Random(seed)
    seen: set[tuple[int, int]] = set()
    while len(seen) < rows:
        left, right = generator.randint(low, high), generator.randint(low, high)
        pair = (min(left, right), max(left, right))
        if pair not in seen:
            seen.add(pair)
            question = f"What is {left} + {right}? Reply with just the number."
            yield {"question": question, "answer": str(left + right)}
