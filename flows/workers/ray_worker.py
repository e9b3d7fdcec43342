"""What a worker of a Ray cluster sees before it runs a cell: the same code and the same files as who sent it.

Ray starts workers wherever it has room, also on nodes that came later than we looked. So each cell looks for itself.
"""

import os
import platform
import socket
import urllib.parse
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from conf.steps import STAGES
from flows.fingerprint import code_digest, digest, library_versions

_SECONDS = 10


def settle(place: Mapping[str, Any]) -> str | None:
    """Take over the surroundings of who sent a cell.

    Args:
        place: As `ray_cluster` makes it: `environment` (variables), `directory` (the current one), `files` (that
            must be there), `servers` (addresses by the setting that names them), `versions` (see `versions`).

    Returns:
        What is wrong with this worker, for a person to read; None when all is well.
    """
    os.environ.update(place["environment"])
    problem = _difference(place["versions"], versions()) or _missing(place["files"]) or _unreachable(place["servers"])
    if problem:
        return f"the Ray node {socket.gethostname()} {problem}"
    os.chdir(place["directory"])
    return None


def versions() -> dict[str, str]:
    """What must be the same everywhere, so that a step leaves the same wherever it runs."""
    code = digest({stage: code_digest(f"stages.{stage}") for stage in STAGES})
    ours = {"ratchet": version("ratchet"), "prefect": version("prefect"), "the code of the stages": code}
    return {"Python": platform.python_version(), **ours, **library_versions()}


def _difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    for name, wanted in theirs.items():
        if ours.get(name) != wanted:
            return f"has {name} {ours.get(name)}, and not {wanted} as here; install the same there"
    return None


def _missing(files: Iterable[str]) -> str | None:
    for file in files:
        if not Path(file).exists():
            return (
                f"does not see {file}; the project and runs_dir must be on a file system that all nodes share, under "
                "the same path"
            )
    return None


def _unreachable(servers: Mapping[str, str]) -> str | None:
    for name, url in servers.items():
        address = urllib.parse.urlsplit(url)
        port = address.port or (443 if address.scheme == "https" else 80)
        try:
            socket.create_connection((str(address.hostname), port), timeout=_SECONDS).close()
        except OSError as error:
            return (
                f"does not reach {name} at {address.hostname}:{port} ({error.strerror or error}); several machines "
                "need one that all of them reach"
            )
    return None
