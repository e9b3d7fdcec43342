"""Hydra at the door: from overrides on a command line to one plain mapping.

The packaged YAML groups are searched after the user's own directory (`--config-dir`, or `./conf` where there is one).
Nothing past this module sees a DictConfig.
"""

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from omegaconf import OmegaConf

from conf.errors import ConfigError
from conf.run import RunConfig, check_pins, load_run
from conf.steps import STAGES
from flows.hydra_errors import clear_errors
from flows.search_path import register


def compose_run(overrides: Sequence[str], config_dir: str | None = None) -> RunConfig:
    """Compose, parse and check the configuration that the overrides ask for.

    Raises:
        ConfigError: What is wrong, with its key.
    """
    return load_checked(compose_values(overrides, config_dir), overrides)


def compose_values(overrides: Sequence[str], config_dir: str | None = None) -> dict[str, Any]:
    """Compose the configuration that the overrides ask for, as plain values.

    Raises:
        ConfigError: It cannot be composed.
    """
    register(config_dir)
    with _uninterrupted(), clear_errors(), initialize_config_module("conf", version_base="1.3"):
        return to_plain(compose("config", translate(overrides)))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C a moment later: OmegaConf makes an AttributeError of an interruption that finds it at work."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def load_checked(values: dict[str, Any], overrides: Sequence[str]) -> RunConfig:
    """Parse a composed mapping, and refuse overrides that a step's own settings would silence."""
    config = load_run(values)
    check_pins(config, overridden(overrides))
    return config


def overridden(overrides: Sequence[str]) -> list[str]:
    """The settings that overrides name, those of a section given as a whole one by one.

    `reinforce={beta: 0.1, lora: {r: 4}}` names `reinforce.beta` and `reinforce.lora.r`.
    """
    return [key for each in parse(overrides) for key in _settings(each.key_or_group, each.value())]


def parse(overrides: Sequence[str], where: str = "") -> list[Override]:
    """Overrides as Hydra reads them.

    Args:
        overrides: As on a command line.
        where: As for `clear_errors`.

    Raises:
        ConfigError: One cannot be read.
    """
    with clear_errors(where):
        return OverridesParser.create().parse_overrides(list(overrides))


def key_of(override: Override) -> str:
    """The setting or the group that an override is about, with the package if it names one."""
    return f"{override.key_or_group}@{override.package}" if override.package else override.key_or_group


def quoted(key: str, value: str) -> str:
    """An override that sets a text, whatever is in it; a plain path needs no quotes."""
    plain = re.fullmatch(r"/[\w./-]*", value, re.ASCII)
    return f"{key}={value if plain else QuotedString(value, Quote.single).with_quotes()}"


def _settings(key: str, value: Any) -> list[str]:
    if not isinstance(value, Mapping) or not value:
        return [key]
    return [name for part, item in value.items() for name in _settings(f"{key}.{part}", item)]


def to_plain(composed: Any) -> dict[str, Any]:
    """A composed configuration as plain JSON-like values, enums by name."""
    plain = OmegaConf.to_container(composed, resolve=True, enum_to_str=True)
    return {str(key): value for key, value in dict(plain).items() if key != "hydra"}  # type: ignore[arg-type]


def translate(overrides: Sequence[str]) -> list[str]:
    """`~pipeline.<step>` leaves a step out but keeps its edges, so that the gap it leaves can be closed.

    Raises:
        ConfigError: `~sft` would quietly set the section of that stage to its defaults.
    """
    for override in overrides:
        if override.startswith("~") and override[1:] in STAGES:
            raise ConfigError(f"{override}: a section cannot be left out; a step can: ~pipeline.{override[1:]}")
    return [re.sub(r"^~pipeline\.([^.=]+)$", r"++pipeline.\1.skip=true", override) for override in overrides]
