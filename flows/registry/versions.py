"""A version of a registered model: what its tags say of it, and how it stands."""

from collections.abc import Mapping
from dataclasses import dataclass

from mlflow.entities.model_registry import ModelVersion

ID, IDENTITY, STATE, REPLACES = "ratchet.id", "ratchet.identity", "ratchet.state", "ratchet.replaces"
"""Tags of a version: what it was registered for, its weights, how it stands, and the champion that it replaced."""
CANDIDATE, SHIPPED, WITHDRAWN = "candidate", "shipped", "withdrawn"
"""How a version stands: no alias has pointed to it yet, `champion` has, a person has taken that back."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version of a registered model, as it was when it was read."""

    name: str
    number: int
    source: str
    description: str
    tags: Mapping[str, str]

    @classmethod
    def of(cls, found: ModelVersion) -> "Version":
        """Read one of MLflow's."""
        return cls(
            name=found.name,
            number=int(found.version),
            source=found.source,
            description=found.description or "",
            tags=dict(found.tags),
        )

    def __str__(self) -> str:
        return f"version {self.number} of {self.name}"

    @property
    def state(self) -> str | None:
        """`candidate`, `shipped` or `withdrawn`; None for a version that is not ours."""
        return self.tags.get(STATE)

    @property
    def replaces(self) -> int | None:
        """The number of the champion that it replaced, if it did."""
        number = self.tags.get(REPLACES)
        return int(number) if number else None
