"""An audit as a person reads it: one table, then its findings in words."""

from collections.abc import Mapping, Sequence
from typing import Any

from conf.measuring import AuditConfig
from rewards.findings import Audit, Example, Finding
from stages.table import table

_SHOWN_TERMS = 3
_SHOWN_CHARACTERS = 60


def report(found: Audit, cfg: AuditConfig) -> str:
    """The table of policies, every finding with the row that shows it best, and what to do."""
    parts = [table([_line(finding) for finding in found.all])]
    parts += [_in_words(findings, found) for findings in _alike(found.all)]
    if found.reference is None:
        parts.append(_without_reference(found))
    if found.left_out:
        parts.append(f"Left out, for want of references, a schema or tools: {', '.join(found.left_out)}.")
    if found.failed:
        counts = ", ".join(f"{name} {count}" for name, count in found.failed.items())
        parts.append(f"Scores that are a reward's error_value: {counts}.")
    parts.append(_conclusion(found, cfg))
    return "\n\n".join(parts)


def _line(finding: Finding) -> dict[str, str]:
    return {
        "policy": finding.policy,
        "mean": f"{finding.mean:.3f}",
        "share": "" if finding.share is None else f"{finding.share:.0%}",
        "verdict": finding.verdict + (" (acknowledged)" if finding.acknowledged else ""),
        "earned by": _terms(finding.earned, _SHOWN_TERMS),
        "best row": f"{finding.best.row}: {finding.best.total:.3g}",
    }


def _terms(earned: Mapping[str, float], most: int | None = None) -> str:
    """What counts for something, the largest first."""
    counted = sorted(((name, value) for name, value in earned.items() if abs(value) >= 0.0005), key=_size)
    shown = [f"{name} {value:+.3g}" for name, value in counted[:most]]
    return ", ".join([*shown, *(["..."] if len(counted) > len(shown) else [])])


def _size(item: tuple[str, float]) -> float:
    return -abs(item[1])


def _alike(findings: Sequence[Finding]) -> list[list[Finding]]:
    """What there is to say something about; policies that came to the same completions together."""
    alike: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        if finding.verdict != "fine":
            same = (finding.verdict, finding.acknowledged, finding.mean, finding.best, finding.reason)
            alike.setdefault(tuple(map(str, same)), []).append(finding)
    return list(alike.values())


def _in_words(findings: Sequence[Finding], found: Audit) -> str:
    first = findings[0]
    names = ", ".join(finding.policy for finding in findings)
    start = f"{first.verdict.upper()}{' (acknowledged)' if first.acknowledged else ''}: {names}"
    if first.reason:
        return f"{start}: {first.reason}.\n  Most on {_example(first.best)}"
    earn = "earns" if len(findings) == 1 else "earn"
    whole = "of the largest total there can be" if found.reference is None else "of what the right answers earn"
    return (
        f"{start} {earn} {first.share or 0:.0%} {whole} without doing the job: {_terms(first.earned)}.\n"
        f"  Most on {_example(first.best)}"
    )


def _example(best: Example) -> str:
    return (
        f"row {best.row}: {_short(best.prompt)} -> {_short(best.completion)} = {best.total:.3g} ({_terms(best.earned)})"
    )


def _short(text: str) -> str:
    shown = " ".join(text.split()) if text.strip() else repr(text)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[: _SHOWN_CHARACTERS - 3]}..."


def _without_reference(found: Audit) -> str:
    if found.largest:
        return (
            f"The rows have no right answers; shares are of the largest total the rewards can give, {found.largest:g}."
        )
    return (
        "The rows have no right answers, and the range of the rewards is not known: read the means yourself, or give "
        "the rows a reference or a response."
    )


def _conclusion(found: Audit, cfg: AuditConfig) -> str:
    stops = [finding.policy for finding in found.all if finding.stops]
    if stops:
        return (
            f"Stopped: training would teach the model {', '.join(stops)}. Change the rewards so that only doing the "
            f"job pays, or acknowledge by name: audit.allow=[{','.join([*cfg.allow, *stops])}]."
        )
    warned = [item.policy for item in found.all if item.verdict != "fine" and not item.acknowledged]
    if warned:
        return f"Nothing stops. Watch out for {', '.join(warned)}: the model may settle there before it learns the job."
    return "Nothing stops."
