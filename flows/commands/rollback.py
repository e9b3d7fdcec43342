"""`ratchet rollback --reason TEXT`: a person makes the previous champion the champion again."""

import argparse
import json
from pathlib import Path

from conf.errors import UserError
from conf.registry import RegistryConfig
from conf.schema import TrackingConfig


def main(arguments: argparse.Namespace) -> int:
    """Roll back; returns the exit code.

    Raises:
        UserError: There is no previous champion, no reason is given, or MLflow cannot be used.
    """
    if not arguments.reason.strip():
        raise UserError("--reason: is empty; say why, for whoever asks later")
    registry = RegistryConfig(name=arguments.name or RegistryConfig().name)

    from flows.registry.promotion import rollback

    tracking = TrackingConfig(uri=arguments.tracking_uri)
    done = rollback(Path(arguments.runs_dir).resolve(), tracking, registry.name, arguments.reason.strip())
    print(json.dumps(done) if arguments.json else done["text"])
    return 0
