"""Defaults for the environment of the libraries we run, set before any is imported. What the user has set stays.

Without a server of the user's, Prefect starts a temporary one, which migrates a database on its first start: 20 seconds
are too few on a slow machine, and its telemetry locks the same SQLite file.
"""

import os

DEFAULTS = {
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "DO_NOT_TRACK": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # to ask for GPUs without using any: a lease says later which one to use
    "TQDM_DISABLE": "1",  # progress is ours to show
}


def set_defaults() -> None:
    """Fill in what is not set."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
