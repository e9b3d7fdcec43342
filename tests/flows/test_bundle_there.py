"""A real pipeline goes to another machine and back: other processes, another HOME, and nothing else in common."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PIPELINE = ["experiment=smoke", "hardware.threads=1"]
DONE, STEPS = 3, 7
"""Steps that are done when the bundle is made, and all."""


class Machine:
    """A clean environment: a HOME and a directory of its own, none of our variables but how Python is found.

    Args:
        folder: Where all of it is.
        server: Prefect's, which both share: starting one takes longer than the pipeline.
    """

    def __init__(self, folder: Path, server: str) -> None:
        self.folder = folder / "work"
        self.folder.mkdir(parents=True)
        (folder / "home").mkdir()
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        python = {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{kept.get('PATH', '')}"}
        self.environment = {**kept, **python, "HOME": str(folder / "home"), "PREFECT_API_URL": server}

    def call(self, *arguments: str, at: str = ".") -> str:
        """What a command prints."""
        done = subprocess.run(
            [sys.executable, "-m", "flows", *arguments],
            cwd=self.folder / at,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.mark.slow
def test_there_and_back(prefect_server: Any, tmp_path: Path) -> None:
    from prefect.settings import PREFECT_API_URL

    here, there = (Machine(tmp_path / name, str(PREFECT_API_URL.value())) for name in ("here", "there"))
    here.call("run", *PIPELINE, "~pipeline.reinforce", "~pipeline.evaluate")
    here.call("bundle", *PIPELINE, "--out", "x.tar.zst")
    archive = here.folder / "x.tar.zst"
    subprocess.run(["tar", "--zstd", "-xf", str(archive), "-C", str(there.folder)], check=True)
    for path in (path for path in there.folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert not any(str(place).encode() in content for place in (tmp_path, here.environment["HOME"])), path
    plan = there.call("plan", "experiment=bundled")
    assert plan.count("cached") == DONE and "run" in plan, plan
    subprocess.run(["sh", str(there.folder / "run.sh")], env=_with_ratchet(there, tmp_path), cwd=tmp_path, check=True)
    assert there.call("plan", "experiment=bundled").count("cached") == STEPS
    there.call("bundle", "latest", "--out", str(here.folder / "result.tar.zst"))
    assert here.call("plan", *PIPELINE).count("cached") == DONE
    told = here.call("import", "result.tar.zst")
    assert told.count("is kept") == DONE, told
    assert here.call("plan", *PIPELINE).count("cached") == STEPS
    assert "imported from" in here.call("runs")
    again = here.call("run", *PIPELINE)
    assert again.count("cached") == STEPS, again
    here.call("generate", "latest/reinforce", "What is 1 + 1?")


def _with_ratchet(machine: Machine, folder: Path) -> dict[str, str]:
    """With a command `ratchet` on the PATH that is this source, wherever the installed one comes from."""
    command = folder / "bin" / "ratchet"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m flows "$@"\n')
    command.chmod(0o755)
    return {**machine.environment, "PATH": f"{command.parent}:{machine.environment['PATH']}"}
