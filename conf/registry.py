"""The model registry as the configuration names it: where what ships goes, and how a registered model is addressed."""

import re
from dataclasses import dataclass

from conf.errors import ConfigError
from conf.options import option

REGISTERED = "models:/"
"""How the id of a registered model begins."""


@dataclass
class RegistryConfig:
    """What ships is registered in MLflow's model registry, and found there again under an alias."""

    name: str = option("ratchet", outcome=False)
    """Name of the registered model."""
    fallback: str = option("base", outcome=False)
    """What `champion`, `previous` and `anchor` mean while nothing has shipped: `base` or `run/<id>`."""

    def __post_init__(self) -> None:
        """Refuse a name that MLflow does not take, and a fallback that is no model."""
        if not self.name.strip() or set(self.name) & set("/:@'"):
            raise ConfigError(f"name: {self.name!r} cannot name a registered model; leave out / : @ and quotes")
        if not re.fullmatch("base|run/.+", self.fallback):
            raise ConfigError(f"fallback: expected base or run/<id>, got {self.fallback!r}")


def check_model(model_id: str, fallback: str | None) -> None:
    """Check the id of a base model, and what stands in for it.

    Raises:
        ConfigError: A registered model is addressed wrongly, or another model has a fallback.
    """
    registered = model_id.startswith(REGISTERED)
    if registered and not re.fullmatch(r"models:/[^/:@]+(@\w[\w-]*|/[1-9]\d*)", model_id):
        raise ConfigError(
            f"id: {model_id!r} is no registered model; write models:/NAME@champion (or another alias), or "
            "models:/NAME/VERSION"
        )
    if fallback is not None and not registered:
        raise ConfigError(f"fallback: is for a registered model (models:/NAME@ALIAS), and id is {model_id!r}")
    if fallback is not None and fallback.startswith(REGISTERED):
        raise ConfigError(f"fallback: is for when nothing has shipped yet; give another base model, not {fallback!r}")


def registered_name(model_id: str) -> tuple[str, str]:
    """Name of a registered model, and its alias or version number, from an address that was checked."""
    name, where = re.split("[@/]", model_id.removeprefix(REGISTERED), maxsplit=1)
    return name, where
