"""The exceptions whose text is meant for a person, so that the command line can print it without a traceback."""


class UserError(Exception):
    """A mistake in what the user gave: the message says what is wrong, where, and what would be right (exit code 2)."""


class ConfigError(UserError):
    """A key, type or value of the configuration that cannot be used; the message starts with the dotted key."""


class DiskError(Exception):
    """A disk is full, or a place may not be written: the message names the path (exit code 1: nothing else is wrong).

    Attributes:
        full: Whether room is what lacks; otherwise it is the right to write.
    """

    def __init__(self, message: str, *, full: bool) -> None:
        super().__init__(message)
        self.full = full


class OutageError(Exception):
    """A service could not be reached when it was needed (exit code 1): the message says how to go on once it can."""


class UnreachableError(UserError, OutageError):
    """A service that a run needs to begin did not answer (exit code 2): its address may be wrong, or it may be away."""
