"""A small project that works, and what a mistake in it is (see `tests.flows.test_bad_input`)."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stages import tiny

Files = Mapping[str, str | bytes | None]
"""Contents by path; None where there is no such file."""

ROWS = "".join(f'{{"question": "What is {n} + {n}?", "answer": "{2 * n}"}}\n' for n in range(60))

EXPERIMENT = """# @package _global_
defaults:
  - override /model: tiny
name: mine
pipeline:
  sft: {stage: sft, data: qa}
  pairs: {stage: pairs, start: sft, data: qa, reward: right}
  preference: {stage: preference, start: sft, data: {from: pairs}}
  reinforce: {stage: reinforce, start: preference, data: qa, reward: right}
  evaluate: {stage: evaluate, start: reinforce, baseline: base}
data:
  qa: {source: rows.jsonl, prompt: question, response: answer, reference: answer}
reward:
  right: {numeric: {type: numeric}}
suite:
  qa: {data: qa, reward: right, max_rows: 8}
"""

PROJECT: Files = {"conf/experiment/mine.yaml": EXPERIMENT, "rows.jsonl": ROWS}


@dataclass(frozen=True)
class Mistake:
    """One mistake in the project.

    Attributes:
        name: What it is.
        says: What the message must say, in any order: where the mistake is, and what would be right.
        overrides: Of `ratchet run experiment=mine`.
        files: Files beside the project's, or in their place.
        change: Done to a copy of the tiny model in `model`, which then is the project's model.
        command: Another command line.
    """

    name: str
    says: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    files: Files = field(default_factory=dict)
    change: Callable[[Path], object] | None = None
    command: tuple[str, ...] = ()

    def arguments(self, project: Path) -> list[str]:
        """Write the mistake's files; returns the command line that makes it."""
        write(project, self.files)
        if self.change is not None:
            self.change(Path(shutil.copytree(tiny.directory(), project / "model")))
        model = ["model.id=model"] if self.change else []
        return list(self.command) or ["run", "experiment=mine", *model, *self.overrides]


def override(name: str, *overrides: str, says: list[str]) -> Mistake:
    """A mistake on the command line."""
    return Mistake(name, tuple(says), overrides)


def command(name: str, *arguments: str, says: list[str], files: Files | None = None) -> Mistake:
    """A mistake with another command, or in files that it reads."""
    return Mistake(name, tuple(says), files=files or {}, command=arguments)


def write(folder: Path, files: Files) -> None:
    """Write files, and remove those without a content."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
