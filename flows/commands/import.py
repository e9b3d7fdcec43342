"""`ratchet import`: take results that were computed on another machine, or unpack a bundle to compute here."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from conf.errors import UserError
from flows.bundles.importing import import_archive
from flows.bundles.unpacking import unpack_archive
from stages.cache import draft_name, is_free


def main(arguments: argparse.Namespace) -> int:
    """Check the bundle and take it in; returns the exit code."""
    path = Path(arguments.archive)
    if arguments.unpack is not None:
        return _unpack(path, Path(arguments.unpack), arguments.json)
    found = import_archive(path, Path(arguments.runs_dir).absolute(), lambda line: print(line, file=sys.stderr))
    if arguments.json:
        print(json.dumps(dataclasses.asdict(found)))
        return 0
    for notice in found.notices:
        print(f"note: {notice}")
    for entry in found.kept:
        print(f"{entry}: is here already, and is kept")
    for entry in found.new:
        print(f"{entry}: imported")
    print(f"{found.run}, from {found.origin}" + (": is here already, and is kept" if found.known else ": imported"))
    return 0


def _unpack(path: Path, target: Path, as_json: bool) -> int:
    """Unpack a bundle into a new directory, which appears when every byte is checked."""
    import shutil

    draft = draft_name(target.absolute())
    try:
        if not is_free(target):
            raise UserError(f"--unpack: {target} is there already, and not empty; name a new directory")
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
        manifest = unpack_archive(path, draft)
        if target.is_dir():  # it stays, as somebody may stand in it
            for child in draft.iterdir():
                shutil.move(child, target)
        else:
            draft.replace(target)
    except OSError as error:
        raise UserError(f"--unpack: {target}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if as_json:
        print(json.dumps({"directory": str(target), **{key: manifest.get(key) for key in ("origin", "entries")}}))
    else:
        print(f"{target}: run it there with `ratchet run experiment=bundled`; README.md says what it needs")
    return 0
