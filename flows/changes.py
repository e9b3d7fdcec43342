"""What has changed between two sets of inputs of a step (`StepInputs.parts`), in the words of whoever changed it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_ABSENT = object()
_LONGEST = 32
"""Characters of a value that is shown; of longer ones, hashes among them, it is only said that they changed."""

_PREFIXES = {"reward": "reward ", "suite": "suite ", "libraries": "", "reward_libraries": ""}


def changes(before: Mapping[str, Any], after: Mapping[str, Any], origins: Mapping[str, str | None]) -> list[str]:
    """The differences, each once, in the order of the inputs.

    Args:
        before: What a step was given.
        after: What it would be given now.
        origins: Where the step's models come from, by their label (`start`, `baseline`).
    """
    differences = _differences(before, after, ())
    return list(dict.fromkeys(_words(path, old, new, origins) for path, old, new in differences))


def _differences(old: Any, new: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*new, *old]):
            yield from _differences(old.get(key, _ABSENT), new.get(key, _ABSENT), (*path, key))
    elif old != new:
        yield path, old, new


def _words(path: tuple[str, ...], old: Any, new: Any, origins: Mapping[str, str | None]) -> str:
    group, *names = path
    if group == "suite" and len(names) > 1:
        return f"suite {names[0]}: {_words(tuple(names[1:]), old, new, origins)}"
    if group in ("data", "rows"):
        return f"held_out {_ending(old, new)}" if "held_out" in names and _ABSENT not in (old, new) else "data changed"
    if group == "models":
        label = names[0] if names else "models"
        return f"{label} {_ending(old, new)}" + (f" ({origins[label]})" if label in origins else "")
    if group == "reward" and names[1:2] == ["sources"]:
        name = f"reward file {names[-1]}" if len(names) > 3 else f"files of reward {names[0]}"
    elif group == "code":
        name = "stage code"
    else:
        name = _PREFIXES[group] + ".".join(names) if group in _PREFIXES and names else ".".join(path)
    return f"{name} {_ending(old, new)}"


def _ending(old: Any, new: Any) -> str:
    if old is _ABSENT:
        return "added"
    if new is _ABSENT:
        return "removed"
    texts = [value if isinstance(value, str) else json.dumps(value) for value in (old, new)]
    return "changed" if max(map(len, texts)) > _LONGEST else " -> ".join(texts)
