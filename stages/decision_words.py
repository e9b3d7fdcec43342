"""Why a comparison passed, failed or did not decide, in words that a person can act on."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stages.decision import Comparison, Rules


def why(comparison: "Comparison", tolerance: float, rules: "Rules") -> str:
    """What was compared, the numbers, and what follows from them."""
    name, role = comparison.suite, comparison.role.value
    what = name if name == role else f"{role} {name}"
    anchor = ", against the anchor" if comparison.against == "anchor" else ""
    gain = comparison.after - comparison.before
    interval = f"{100 * rules.confidence:g}% interval {signed(comparison.low)} to {signed(comparison.high)}"
    numbers = f"{comparison.before:.3f} -> {comparison.after:.3f} ({signed(gain)}, {interval})"
    judged = _guard(comparison, tolerance) if comparison.role.guards else _task(comparison, rules.min_gain)
    return f"{what}{anchor}: {numbers}: {judged}"


def signed(number: float) -> str:
    """Three decimals with a sign; what rounds to 0 is +0.000."""
    return f"{round(number, 3) + 0.0:+.3f}"


def _task(comparison: "Comparison", min_gain: float) -> str:
    if comparison.outcome == "pass":
        return f"better, by at least min_gain {min_gain:g}" if min_gain else "better"
    if comparison.outcome == "fail":
        return "worse than before" if comparison.high < 0 else f"the gain is surely below min_gain {min_gain:g}"
    if comparison.low > 0:
        return f"better, but by min_gain {min_gain:g}? {_rows(comparison)}"
    return _rows(comparison)


def _guard(comparison: "Comparison", tolerance: float) -> str:
    before = "before" if comparison.against == "baseline" else "the anchor"
    if comparison.outcome == "pass":
        return f"not lower than {before} by more than {tolerance:g}"
    if comparison.outcome == "fail":
        return f"lower than {before}" + (f" by more than {tolerance:g}" if comparison.against == "anchor" else "")
    drop = f"{tolerance:g}" if comparison.low <= -tolerance else f"twice {tolerance:g} (level 0.005)"
    return f"a drop of more than {drop} is not excluded: {_rows(comparison)}"


def _rows(comparison: "Comparison") -> str:
    """How many rows cannot tell, how many would, and what these could have shown."""
    change = "gain" if comparison.after > comparison.before else "difference"
    more = f"about {_about(comparison.rows_needed)} would, if the {change} is real"
    if comparison.rows_needed is None:
        more = "more would hardly, at so small a difference"
    power = f"they show a change of {comparison.detectable:.3f} in 4 of 5 cases"
    return f"{comparison.rows:,} rows cannot tell; {more} ({power})"


def _about(number: int | None) -> str:
    """Two significant digits: more would pretend to a precision that an extrapolation lacks."""
    return f"{int(float(f'{number or 0:.2g}')):,}"
