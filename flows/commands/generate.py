"""`ratchet generate RUN "prompt"`: ask the model a run left, or the one it started from, or the base."""

import argparse
from dataclasses import replace
from pathlib import Path

from conf.errors import UserError
from conf.hardware import HardwareConfig
from flows.console import Console
from flows.leases import command_lease
from flows.references import find_run
from stages.contract import ModelRef
from stages.hardware import resolve_hardware
from stages.rows import Row


def main(arguments: argparse.Namespace) -> int:
    """Print the reply; returns the exit code.

    Raises:
        UserError: There is no such run, or an option is out of range.
    """
    if not (arguments.temperature == 0 or 0.01 <= arguments.temperature <= 100) or arguments.max_new_tokens < 1:
        raise UserError("--temperature must be 0 or between 0.01 and 100, and --max-new-tokens at least 1")
    if not 0 <= arguments.seed < 2**32:
        raise UserError("--seed must be at least 0 and below 2^32")
    found = find_run(Path(arguments.runs_dir), arguments.run)
    model = found.model()
    if arguments.base:
        model = model.base
    elif arguments.start:
        model = _start(model, found.entry.path)
    print(_reply(model, arguments))
    return 0


def _start(model: ModelRef, entry: Path) -> ModelRef:
    """The model without the adapter that the run itself added (if it added one)."""
    own = [adapter for adapter in model.adapters if adapter.path.parent == entry]
    return replace(model, adapters=model.adapters[: len(model.adapters) - len(own)])


def _reply(model: ModelRef, arguments: argparse.Namespace) -> str:
    from stages.fold import load_folded
    from stages.hardware import prepare
    from stages.models import load_tokenizer
    from stages.packed import pack
    from stages.samples import answer

    hardware = replace(resolve_hardware(HardwareConfig()), dtype=model.dtype)
    with command_lease("a reply", hardware, Console().say):
        prepare(hardware, arguments.seed)
        replies = answer(
            pack(load_folded(model, hardware).model),
            load_tokenizer(model),
            model,
            [Row(prompt=arguments.prompt, system=arguments.system)],
            max_new_tokens=arguments.max_new_tokens,
            temperature=arguments.temperature,
            batch_size=1,
            seed=arguments.seed,
        )
    return replies[0][0].text
