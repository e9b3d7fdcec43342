"""Reward `math`: the completion's answer is mathematically equivalent to the reference, by the math-verify library.

The library's own timeouts need signals, which work on the main thread only, and its default answer to any failure is
"not equal". Here its timeouts are off (an expression can keep it busy without end: the caller has to set the limit) and
a failure is reported as one, unless it is the completion that is no mathematics.
"""

import functools
import importlib.util
import logging
import re
from decimal import Decimal
from typing import Any

from conf.code_rewards import MathConfig
from conf.errors import ConfigError
from rewards.contract import Reward, RewardError, Sample, Value, reference_text, shown

_BRACE = re.compile(r"\\boxed\{|\\.|[{}]", re.DOTALL)
_DELIMITED = re.compile(r"\$|\\\(|\\\[|\n|#|\*\*")
_COMMAND = re.compile(r"\\(?:text|mathrm|operatorname|begin|end)\{[^}]*\}|\\[A-Za-z]+")
_PROSE = re.compile(r"(?<![A-Za-z])(?!sqrt|infinity)(?:[A-Za-z]{3,}|(?:am|at|in|is|it|no|of|so|to|we)(?![A-Za-z]))")
_SCIENTIFIC = re.compile(r"(?<![\w.])\d+(?:\.\d+)?[eE][-+]?\d{1,2}(?!\w)")
_IGNORED = re.compile(r"\\?%|\\\$")
_MIXED = re.compile(r"(?<![\d./])(\d+) +(\d+)/(\d+)(?![\d./])")


def math(config: MathConfig) -> Reward:
    r"""1 when equivalent, else 0; the last `\boxed{}` counts, else the last expression.

    Raises:
        ConfigError: math-verify is not installed.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise ConfigError('type: math needs the math-verify library; install it with: pip install "ratchet[math]"')
    import math_verify  # noqa: F401  # takes seconds: now, and not within the time limit of the first call

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns once that its timeouts are off

    def reward(sample: Sample) -> Value:
        expected = _expected(reference_text(sample), config.decimals)
        try:
            got = _read(sample.completion)
        except Exception as error:
            return Value(0.0, f"cannot be read: {type(error).__name__}")
        if not got:
            return Value(0.0, "no mathematical expression in the completion")
        equal = _equal(expected, got, config.decimals)
        return Value(float(equal), f"{shown(got[-1])} {'equals' if equal else 'is not'} {shown(expected[-1])}")

    return reward


@functools.lru_cache(maxsize=4096)
def _expected(text: str, decimals: int) -> list[Any]:
    """The expression of a reference: one that can be read, and compared at least with itself."""
    hint = "; write it as LaTeX, e.g. $\\frac{1}{2}$ or \\text{yes}"
    try:
        read = _read(text)
    except Exception as error:
        raise RewardError(f"the reference {shown(text)} cannot be read: {type(error).__name__}{hint}") from error
    if not read or isinstance(read[0], str):
        raise RewardError(f"the reference has no mathematical expression: {shown(text)}{hint}")
    if not _equal(read[:1], read[:1], decimals):
        raise RewardError(f"the reference {shown(text)} does not equal itself by math-verify{hint}")
    if _rounds_to_nothing(read[0], decimals):
        raise RewardError(f"the reference {shown(text)} rounds to 0 at {decimals} decimals; raise `decimals`")
    return read


def _rounds_to_nothing(expression: Any, decimals: int) -> bool:
    """Whether it is a number that cannot be told from 0, though it is another."""
    import sympy

    value = expression.evalf() if isinstance(expression, sympy.Expr) else None
    return isinstance(value, sympy.Number) and bool(0 < abs(value) < 10.0**-decimals)


def _read(text: str) -> list[Any]:
    """The last expression: as a sympy object where it could be read as one, and as text. Empty when there is none."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    read: list[Any] = parse(
        _with_delimiters(text),
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()],
        extraction_mode="first_match",
        parsing_timeout=None,
        raise_on_error=True,
    )
    return read


def _equal(expected: list[Any], got: list[Any], decimals: int) -> bool:
    """Whether any form of the one equals any form of the other.

    Raises:
        RewardError: None does, and math-verify failed on some.
    """
    from math_verify import verify

    failure: Exception | None = None
    for one in expected:
        for other in got:
            try:
                if verify(one, other, float_rounding=decimals, timeout_seconds=None, raise_on_error=True):
                    return True
            except Exception as error:
                failure = error
    if failure is not None:
        raise RewardError(f"math-verify failed to compare: {type(failure).__name__}: {failure}") from failure
    return False


def _with_delimiters(text: str) -> str:
    """The text as math-verify understands it.

    It reads LaTeX only between delimiters: bare `2x+1` would be 2. So a single line without words is put between them.
    It does not know U+2212, `1e-5` and `3 1/2` either, nor LaTeX's percent and dollar signs, which count for nothing,
    as they do in `rewards.number`.
    """
    text = _IGNORED.sub("", text.replace("\u2212", "-")).strip()
    text = _SCIENTIFIC.sub(lambda match: format(Decimal(match[0]), "f"), text)
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed
    if not text or _DELIMITED.search(text) or _PROSE.search(_COMMAND.sub("", text)):
        return text
    return "$" + _MIXED.sub(r"\1\\frac{\2}{\3}", text) + "$"


def _last_boxed(text: str) -> str | None:
    r"""The last `\boxed{...}` that is closed, with its braces; None when there is none."""
    last = None
    opened: list[int | None] = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "}" and opened:
            start = opened.pop()
            last = last if start is None else text[start : brace.end()]
        elif brace[0].endswith("{") and brace[0] != "\\{":
            opened.append(None if brace[0] == "{" else brace.start())
    return last
