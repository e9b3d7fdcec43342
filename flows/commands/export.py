"""`ratchet export RUN --out DIR`: the folded model, for plain transformers."""

import argparse
from pathlib import Path

from conf.hardware import HardwareConfig
from flows.console import Console
from flows.leases import command_lease
from flows.references import find_run
from stages.hardware import resolve_hardware


def main(arguments: argparse.Namespace) -> int:
    """Write the model; returns the exit code."""
    model = find_run(Path(arguments.runs_dir), arguments.run).model()

    from stages.export import check_out, export

    out, hardware = Path(arguments.out), resolve_hardware(HardwareConfig())
    check_out(out)  # before it may have to wait
    # It folds where models are evaluated, so that it writes the weights that were: on a GPU where there is one, whose
    # memory a step counts on having for itself.
    with command_lease("an export", hardware, Console().say):
        export(model, hardware, out)
    print(f"{out}: {model.config.id} with {len(model.adapters)} adapters folded in ({model.dtype})")
    return 0
