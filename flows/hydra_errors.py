"""What Hydra and OmegaConf raise, as one clear line: what is wrong, where, and what would be right."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

import conf
from conf.errors import ConfigError, UserError
from conf.loader import unknown_key
from conf.schema import RatchetConfig
from conf.textfile import read_text
from flows.search_path import UserDirectory

HYDRA_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, ValueError, TypeError, RecursionError)
"""What composing raises: beside Hydra's own, for broken YAML, for `pipeline=3`, for `suite=[3]`, and for a file that
includes itself."""


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
        return (
            f"{error.override}: cannot be read as KEY=VALUE, e.g. sft.max_steps=10; close every quote and bracket, and "
            "put a text with other signs, or letters with accents, in quotes of its own: KEY='TEXT'"
        )
    if isinstance(error, TypeError) and "iterable" in first_line:
        return "a group takes names of its files; put one that reads as a number in quotes of its own, e.g. suite=['3']"
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
    for path in sorted(UserDirectory.directory.rglob("*.yaml")) if UserDirectory.directory else []:
        try:
            read_text(path, str(path))
        except UserError as found:
            return str(found)
    return f"a configuration file cannot be read as YAML: {error}"


def _choices(group: str) -> list[str]:
    """The files of a configuration group, the user's own included."""
    directories = [Path(conf.__file__).parent, *([UserDirectory.directory] if UserDirectory.directory else [])]
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
