"""What looks like a secret: one answer for all who must not pass one on, into a bundle or into the logs of Ray."""

import re

USER = re.compile(r"(?<=://)[^/@\s]+@")
"""The user and the password of an address."""

_PASSWORD = re.compile(r"://(?:[^/@:\s]*:)?([^/@\s]+)@")
_VARIABLE = re.compile(
    r"TOKEN|SECRET|PASS|_PWD|CREDENTIAL|AUTH(?!OR)|KEY|HEADERS", re.IGNORECASE
)  # not PWD and OLDPWD, which every shell sets
_SETTING = re.compile(r"(^|_)(token|api_?key|secret|passw(or)?d)$", re.IGNORECASE)  # and `max_new_tokens` is none


def secrets_of(name: str, value: str) -> list[str]:
    """What of an environment variable is secret: all of it, by its name; or the password of an address in it."""
    return [value] if _VARIABLE.search(name) else _PASSWORD.findall(value)


def is_secret_setting(name: str) -> bool:
    """Whether a setting of the configuration is called like a secret."""
    return bool(_SETTING.search(name))
