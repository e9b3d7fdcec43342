"""A life on a small disk, as a program: `small_disk.py DIR MIB PATTERN KIB ARGUMENTS...`.

To be started in a mount namespace of its own. It mounts a file system of so many MiB on the directory, and gives the
arguments to the command line: while the disk is full; with a MiB of room; while it fills up to the last KIB, as soon as
something of the pattern appears; with all its room; and where it is mounted read-only, as it does then with commands
that only read. Prints what came of all that as JSON; on standard error every command is preceded by its name.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

READING = [["runs"], ["progress", "latest/sft"], ["compare", "latest", "--known"]]
"""Commands that write nothing, besides `plan`."""


def main(folder: Path, size: int, pattern: str, left: int, pipeline: list[str]) -> dict[str, Any]:
    """Do it."""
    disk, read_only = folder / "disk", folder / "read-only"
    for path in (disk, read_only):
        path.mkdir()
    mount("-t", "tmpfs", "-o", f"size={size}m", "none", disk)
    runs, filler = disk / "runs", disk / "filler"
    codes, found = {}, {}

    fill(filler)
    codes["no room"] = ratchet("no room", "run", *pipeline, f"runs_dir={runs}")
    fill(filler, 1024)
    codes["little room"] = ratchet("little room", "run", *pipeline, f"runs_dir={runs}")
    filler.unlink()

    filling = threading.Thread(target=fill_when, args=(filler, left, runs, pattern), daemon=True)
    filling.start()
    codes["filling"] = ratchet("filling", "run", *pipeline, f"runs_dir={runs}")
    filling.join(10)
    found["filling"] = look(runs)
    filler.unlink()

    codes["room"] = ratchet("room", "run", *pipeline, f"runs_dir={runs}")
    found["room"] = look(runs)

    mount("--bind", disk, read_only)
    mount("-o", "remount,bind,ro", read_only)
    runs = read_only / "runs"
    codes["read-only"] = ratchet("read-only", "run", *pipeline, f"runs_dir={runs}")
    codes["plan"] = ratchet("plan", "plan", *pipeline, f"runs_dir={runs}")
    for command in READING:
        codes[command[0]] = ratchet(command[0], *command, "--runs-dir", str(runs))
    return {"codes": codes, "found": found}


def mount(*arguments: str | Path) -> None:
    """Mount a file system."""
    subprocess.run(["mount", *arguments], check=True)


def ratchet(name: str, *arguments: str) -> int:
    """The exit code of the command line."""
    from flows.cli import main

    print(f"== {name}", file=sys.stderr, flush=True)
    return main(arguments)


def fill_when(filler: Path, left: int, runs: Path, pattern: str) -> None:
    """Wait for a file, then fill the disk."""
    while not any(runs.glob(pattern)):
        time.sleep(0.005)
    fill(filler, left)


def fill(filler: Path, left: int = 0) -> None:
    """Leave so many KiB free."""
    with filler.open("ab", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    os.truncate(filler, filler.stat().st_size - left * 2**10)


def look(runs: Path) -> dict[str, Any]:
    """All files with their hashes, and the states of all steps, by pipeline run."""
    paths = [path for path in sorted(runs.rglob("*")) if path.is_file()]
    records = [
        json.loads(path.read_text()) for path in paths if path.name == "pipeline.json" and path.match("pipelines/*/*")
    ]
    return {
        "files": {str(path.relative_to(runs)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths},
        "states": [{name: step["state"] for name, step in record["steps"].items()} for record in records],
    }


if __name__ == "__main__":
    folder, size, pattern, left, *pipeline = sys.argv[1:]
    print("\n" + json.dumps(main(Path(folder), int(size), pattern, int(left), pipeline)))
