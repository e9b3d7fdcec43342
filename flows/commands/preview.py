"""`ratchet preview`: rows as the model will see them, for every data source of a pipeline."""

import argparse

from flows.compose import compose_run
from flows.workspace import Workspace


def main(arguments: argparse.Namespace) -> int:
    """Print the first rows of every source; returns the exit code."""
    workspace = Workspace(compose_run(arguments.overrides, arguments.config_dir))
    workspace.store.prepare()

    from stages.chat import prompt_string
    from stages.models import load_tokenizer
    from stages.preview import preview
    from stages.rows import read_rows

    tokenizer = load_tokenizer(workspace.models.base)
    for source in workspace.suites.sources():
        files = workspace.suites.prepared(source)
        rows = {split: read_rows(path) for split, path in files.items()}
        counts = ", ".join(f"{len(rows[part])} {part}" for part in ("train", "select", "gate"))
        split = "train" if rows["train"] else "select"  # where all rows are held out
        shown = rows[split][: max(arguments.rows, 0)]
        prompts = [prompt_string(tokenizer, workspace.models.base.config, row) for row in shown]
        print(f"{source}: {counts}\n")
        print(preview(shown, prompts, [split] * len(shown)), end="\n\n")
    return 0
