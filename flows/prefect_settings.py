"""Settings that make Prefect start reliably on a fresh machine, set before Prefect is imported.

Without a server of the user's, Prefect starts a temporary one, which migrates a database on its first start: 20 seconds
are too few on a slow machine, and its telemetry locks the same SQLite file. What the user has set stays.
"""

import os

_SETTINGS = {
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_CLI_PROMPT": "false",
    "DO_NOT_TRACK": "1",
}

for _name, _value in _SETTINGS.items():
    os.environ.setdefault(_name, _value)
