"""A rank that samples nothing: it is given the completions that one process alone sampled (RECORD names the file)."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from stages.rank_main import main


def replay(path: Path) -> None:
    """Let the trainer find its completions by the steps done and the row."""
    from stages.groups import Group
    from stages.grpo import OnPolicyTrainer

    recorded = json.loads(path.read_text())

    def groups(self: OnPolicyTrainer, prompts: Sequence[int]) -> list[Group]:
        return [Group(recorded[f"{self.state.global_step} {prompt}"], None) for prompt in prompts]

    OnPolicyTrainer._groups = groups  # type: ignore[method-assign]


if __name__ == "__main__":
    replay(Path(os.environ["RECORD"]))
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
