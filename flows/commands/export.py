"""`ratchet export RUN --out DIR`: the folded model, for plain transformers."""

import argparse
from pathlib import Path

from conf.hardware import HardwareConfig
from flows.references import find_run
from stages.hardware import resolve_hardware


def main(arguments: argparse.Namespace) -> int:
    """Write the model; returns the exit code."""
    model = find_run(Path(arguments.runs_dir), arguments.run).model()

    from stages.export import export

    out = Path(arguments.out)
    export(model, resolve_hardware(HardwareConfig()), out)
    print(f"{out}: {model.config.id} with {len(model.adapters)} adapters folded in ({model.dtype})")
    return 0
