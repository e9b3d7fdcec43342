"""A project whose sweeps take seconds: the tiny model learns to say yes, by as many steps of `sft` as it gets."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.references import pipeline_records
from stages.hardware import cores

COLORS = ("red", "blue", "green", "pink", "grey")
CONF = {
    "data/asked.yaml": "# @package data.asked\nsource: asked.jsonl\nprompt: ask\nresponse: say\nreference: say\n",
    "reward/exact.yaml": "# @package reward.exact\nexact: {type: exact}\n",
    "reward/letters.yaml": """\
# @package reward.letters
exact: {type: exact}
letters: {type: regex, pattern: "[aeiou]", weight: 0.2}
""",
    "suite/task.yaml": "# @package suite.task\ndata: asked\nreward: exact\nmax_new_tokens: 4\n",
    "experiment/asked.yaml": """\
# @package _global_
defaults:
  - override /model: tiny
  - override /data: [asked]
  - override /reward: [letters, exact]
  - override /suite: [task]
name: asked
pipeline:
  sft: {stage: sft, data: asked}
  reinforce: {stage: reinforce, start: sft, data: asked, reward: letters, audit: false}
sft: {max_steps: 4, batch_size: 8, n_samples: 0, learning_rate: 2e-2, save_steps: 1}
reinforce: {max_steps: 3, batch_size: 4, group_size: 4, max_new_tokens: 4, n_samples: 0, save_steps: 1}
probe: {prompts: 4, samples: 4, force: true}
hardware: {threads: 1}
""",
}
two_cores = pytest.mark.skipif(len(cores()) < 2, reason="takes two cores: on one, cells wait for each other")
ALONE = ["experiment=asked", "~pipeline.reinforce"]
"""Only `sft`."""


class Project:
    """The project as the current directory, with its own runs."""

    def __init__(self, folder: Path, capsys: Any) -> None:
        self.folder, self.runs, self._capsys = folder, folder / "runs", capsys
        for name, text in CONF.items():
            (folder / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "conf" / name).write_text(text)
        rows = [{"ask": f"{color} {number}?", "say": "yes"} for color in COLORS for number in range(60)]
        (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def sweep(self, *overrides: str) -> tuple[int, dict[str, Any], str]:
        """Sweep; returns the exit code, what `--json` printed, and what was said on the way."""
        self._capsys.readouterr()
        code = main(["run", "-m", "--json", *overrides])
        shown = self._capsys.readouterr()
        return code, json.loads(shown.out) if shown.out else {}, shown.err

    def records(self) -> list[dict[str, Any]]:
        """The records of all runs."""
        return pipeline_records(self.runs)

    def cells(self, sweep: str) -> list[dict[str, Any]]:
        """The records of a sweep's runs."""
        return [record for record in self.records() if (record["sweep"] or {}).get("id") == sweep]


@pytest.fixture
def project(prefect_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Project:
    """The project, on the session's Prefect server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RATCHET_RUNS_DIR", raising=False)
    return Project(tmp_path, capsys)
