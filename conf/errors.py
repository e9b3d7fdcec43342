"""The exceptions whose text is meant for a person, so that the command line can print it without a traceback."""


class UserError(Exception):
    """A mistake in what the user gave: the message says what is wrong, where, and what would be right (exit code 2)."""


class ConfigError(UserError):
    """A key, type or value of the configuration that cannot be used; the message starts with the dotted key."""
