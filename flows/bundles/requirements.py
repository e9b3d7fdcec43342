"""The software that a result depends on, as it is installed here: pins for another machine."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def pins(roots: Iterable[str]) -> list[str]:
    """`name==version` of distributions and of all that they require, as far as it is installed; sorted.

    A constraints file for pip: a build (`+cpu`) is left to the index that has it, and Ratchet does not come from one.
    """
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(root, "") for root in roots]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            found[canonicalize_name(name)] = version(name).partition("+")[0]
        except PackageNotFoundError:  # of another platform, or a choice that was not taken
            continue
        for needed in map(Requirement, requires(name) or []):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(needed.name, asked) for asked in ("", *needed.extras)]
    return [f"{name}=={found[name]}" for name in sorted(found) if name != "ratchet"]
