"""`ratchet bundle`: pack a pipeline, with all that another machine needs to go on from here, into one file."""

import argparse
import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conf.errors import UserError
from conf.run import RunConfig, load_run
from flows.bundles.archive import write_archive
from flows.bundles.edges import pipeline_then
from flows.bundles.pack import pack
from flows.compose import compose_run
from flows.references import find_pipeline
from flows.workspace import Workspace
from stages.disk import size_text

SUFFIX = ".tar.zst"


def main(arguments: argparse.Namespace) -> int:
    """Write the bundle and say what is in it; returns the exit code."""
    out = Path(arguments.out).absolute()
    if not out.name.endswith(SUFFIX) or not out.parent.is_dir() or out.is_dir():
        raise UserError(f"--out: expected a file NAME{SUFFIX} in a directory that exists, got {arguments.out}")
    with _chosen(arguments) as (config, record):
        workspace = Workspace(config)
        workspace.store.prepare()
        bundle = pack(workspace, record)
        try:
            write_archive(out, bundle.facts, bundle.members)
        except OSError as error:
            raise UserError(f"--out: {arguments.out}: {error.strerror or error}") from error
    entries = bundle.facts["entries"]
    if arguments.json:
        print(json.dumps({"bundle": str(out), **bundle.facts, "notices": bundle.notices}))
        return 0
    for notice in bundle.notices:
        print(f"note: {notice}")
    print(
        f"{arguments.out}: {size_text(out.stat().st_size)}, {len(bundle.members)} files, {len(entries)} finished steps"
    )
    print(f"there: ratchet import {out.name} --unpack DIR && cd DIR && ratchet run experiment=bundled")
    return 0


@contextlib.contextmanager
def _chosen(arguments: argparse.Namespace) -> Iterator[tuple[RunConfig, Mapping[str, Any] | None]]:
    """The configuration that was asked for, by overrides or by the name of a run; a run in the directory it ran in."""
    words = arguments.overrides
    if len(words) > 1 or "=" in words[0] or words[0].startswith(("~", "+")):
        yield compose_run(words, arguments.config_dir), None
        return
    runs_dir = Path(arguments.runs_dir).absolute()
    record = find_pipeline(runs_dir, words[0])
    if record is None:
        raise UserError(f"{words[0]}: no run has that name in {runs_dir}; `ratchet runs` lists them")
    if record["state"] == "running":
        raise UserError(f"{record['id']}: is still running; bundle it when it has ended, or cancel it first")
    directory = Path(record.get("directory", "."))
    if not directory.is_dir():
        raise UserError(f"{record['id']}: its directory {directory} is gone; bundle the overrides it had instead")
    with contextlib.chdir(directory):
        then = {"pipeline": pipeline_then(record, runs_dir), "runs_dir": str(runs_dir)}
        yield load_run({**record["config"], **then}), record
