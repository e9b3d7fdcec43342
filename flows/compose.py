"""Hydra at the door: from overrides on a command line to one plain mapping, and from Hydra's errors to one clear line.

The packaged YAML groups are searched after the user's own directory (`--config-dir`, or `./conf` where there is one).
Nothing past this module sees a DictConfig.
"""

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

import conf
from conf.errors import ConfigError, UserError
from conf.loader import unknown_key
from conf.run import RunConfig, check_pins, load_run
from conf.schema import RatchetConfig
from conf.steps import STAGES
from conf.textfile import read_text

HYDRA_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, ValueError, RecursionError)
"""What composing raises: beside Hydra's own, for broken YAML, for `pipeline=3`, and for a file that includes itself."""


class _UserDirectory(SearchPathPlugin):
    """Puts the user's own configuration directory in front of the packaged one."""

    directory: Path | None = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra whenever it builds its search path."""
        if self.directory is not None:
            search_path.prepend(provider="user", path=f"file://{self.directory}")


def register(config_dir: str | None) -> None:
    """Tell Hydra the schema and where the user's own configuration lives.

    Raises:
        ConfigError: `config_dir` is no directory.
    """
    if config_dir is not None and not Path(config_dir).is_dir():
        raise ConfigError(f"--config-dir: there is no directory {config_dir}")
    directory = Path(config_dir or "conf").resolve()
    _UserDirectory.directory = directory if directory.is_dir() else None
    _register_schema()


@cache
def _register_schema() -> None:
    Plugins.instance().register(_UserDirectory)
    ConfigStore.instance().store(name="schema", node=RatchetConfig)


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


@contextmanager
def clear_errors(where: str = "") -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise into a ConfigError of one line.

    Args:
        where: What an error begins with that does not say where it comes from.

    Raises:
        ConfigError: For every error of theirs.
    """
    try:
        yield
    except HYDRA_ERRORS as error:
        raise ConfigError(_explain(error, where)) from error


def _explain(error: Exception, where: str) -> str:
    if isinstance(error, UnicodeDecodeError):
        return _explain_undecodable(error)
    if isinstance(error, YAMLError):
        return f"a configuration file cannot be read as YAML: {' '.join(str(error).split())}"
    if isinstance(error, RecursionError):
        return "the configuration files include each other in a cycle; look at their defaults lists"
    cause = error.__cause__
    full_key = re.search(r"full_key: (\S+)", str(cause) if cause else str(error))
    first_line = str(error).splitlines()[0]
    unknown = re.match(r"Could not override '([^']+)'", first_line)
    if unknown:
        return _explain_unknown((full_key or unknown).group(1), unknown.group(1))
    if full_key and re.search(r"^Key '[^']+' not in", str(error), re.MULTILINE):
        return _explain_unknown(full_key.group(1))
    if re.match(r"In '([^']+)': Could not override '[^']+@", first_line):
        return f"{first_line} A file conf/experiment/NAME.yaml starts with the line '# @package _global_'"
    if full_key:
        return f"{full_key.group(1)}: {_reason(str(cause or error).splitlines()[0])}"
    options = re.search(r"Available options in '([^']+)':\n((?:\t.+\n?)+)", str(error))
    missing = re.search(r"Could not find '([^']+)'", str(error))
    if options and missing:
        names = ", ".join(line.strip() for line in options.group(2).splitlines())
        return f"{options.group(1)}: there is no {missing.group(1)!r}; available: {names}"
    group = re.search(r"Could not load '([^']+)/([^'/]+)'", first_line)
    if group:
        return f"{group.group(1)}: there is no {group.group(2)!r}; available: {', '.join(_choices(group.group(1)))}"
    if several := re.match(r"Ambiguous value for argument '(.+)'", first_line):
        return (
            f"{several[1]}: has several values; add -m to sweep over them (ratchet run), or write them as a list in "
            "brackets, or as one text in quotes"
        )
    if isinstance(error, OverrideParseException):
        return f"{error.override}: cannot be read as KEY=VALUE; close every quote and bracket, e.g. sft.max_steps=10"
    if isinstance(error, ValueError) and not re.search(r"\bgroup\b", first_line):
        return f"{where}{first_line}"
    if isinstance(error, ValueError):
        return f"{first_line}; a group takes the name of one of its files, e.g. pipeline=full"
    return " ".join(line.strip() for line in str(error).splitlines()[:2])


_REASONS = (
    (r"Value (?P<got>.*) of type '\w+' could not be converted to Float", "a number"),
    (r"Value (?P<got>.*) of type '\w+' could not be converted to Integer", "a whole number"),
    (r"Value (?P<got>.*) is not a valid bool \(type \w+\)", "true or false"),
    (r"Invalid type assigned: (?P<kind>\w+) is not a subclass of \w+\. value: (?P<got>.*)", "a mapping"),
    (r"Invalid value assigned: (?P<got>\w+) is not a ListConfig, list or tuple\.", "a list"),
    (r"Cannot assign (?P<got>\w+) to Dict\[.*", "a mapping"),
)
"""What OmegaConf says of a value of another type than the field's, and what it should have been."""


def _reason(text: str) -> str:
    for pattern, expected in _REASONS:
        if found := re.fullmatch(pattern, text):
            return f"expected {expected}, got {found['got']}"
    return f"{text[0].lower()}{text[1:]}"


def _explain_undecodable(error: UnicodeDecodeError) -> str:
    """Name the file, which the error does not."""
    for path in sorted(_UserDirectory.directory.rglob("*.yaml")) if _UserDirectory.directory else []:
        try:
            read_text(path, str(path))
        except UserError as found:
            return str(found)
    return f"a configuration file cannot be read as YAML: {error}"


def _choices(group: str) -> list[str]:
    """The files of a configuration group, the user's own included."""
    directories = [Path(conf.__file__).parent, *([_UserDirectory.directory] if _UserDirectory.directory else [])]
    return sorted({path.stem for directory in directories for path in (directory / group).glob("*.yaml")})


def _explain_unknown(key: str, asked: str = "") -> str:
    """Say which keys there are at the place where an unknown one was given.

    Args:
        key: The first part of what was asked for that is not known; it may be within a section given as a whole.
        asked: The key of the override.
    """
    parent, _, name = key.rpartition(".")
    schema = OmegaConf.structured(RatchetConfig)
    section = key.split(".")[0]
    if section not in schema:
        return unknown_key(section, [str(item) for item in schema])
    node: Any = OmegaConf.select(schema, parent) if parent else schema
    if parent.split(".")[0] in ("data", "reward", "suite", "pipeline") or node is None or _is_open(node):
        missing = max(key, asked, key=len)
        return f"{missing}: is not set, so there is nothing to override; write +{missing}=... to add it"
    refused = getattr(OmegaConf.get_type(node), "refused", {})
    return unknown_key(name, [str(item) for item in node], parent, refused)


def _is_open(node: Any) -> bool:
    """Whether a part of the schema takes any key: what a library is told."""
    return OmegaConf.get_type(node) is dict
