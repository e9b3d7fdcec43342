"""How a configuration field states its limits and whether it changes the outcome of a stage.

A field is declared as `option(default, ge=0)`; the loader (`conf.loader`) checks the limits, and the fingerprint
leaves out what is declared with `outcome=False` (paths, names, logging).
"""

import dataclasses
from collections.abc import Callable
from typing import Any


def option(
    default: Any = dataclasses.MISSING,
    *,
    factory: Callable[[], Any] | Any = dataclasses.MISSING,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    outcome: bool = True,
) -> Any:
    """Declare a configuration field.

    Args:
        default: The value when the user gives none; a field with neither default nor factory is required.
        factory: Makes the default, for mutable ones.
        gt: The value must be above this.
        ge: The value must be at least this.
        lt: The value must be below this.
        le: The value must be at most this.
        outcome: Whether the field can change what a stage produces, and so belongs to its fingerprint.
    """
    limits = {name: bound for name, bound in (("gt", gt), ("ge", ge), ("lt", lt), ("le", le)) if bound is not None}
    metadata = {"limits": limits, "outcome": outcome}
    return dataclasses.field(default=default, default_factory=factory, metadata=metadata)
