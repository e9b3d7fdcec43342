"""The README's appendix "Cost on paper": `python benchmarks/cost.py` prints its tables, from the formulas alone.

Nothing is measured here; `benchmarks/memory.py` measures what this machine can.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conf.training import ReinforceConfig, SFTConfig, TrainingConfig
from stages.contract import Hardware
from stages.cost import Memory, step_memory
from stages.cost_batches import Lengths, micro_batch
from stages.cost_time import A100, SCALING, step_seconds
from stages.shapes import KNOWN

MODELS = {
    "0.5B": "Qwen/Qwen2.5-0.5B-Instruct",
    "1.5B": "Qwen/Qwen2.5-1.5B-Instruct",
    "7B": "Qwen/Qwen2.5-7B-Instruct",
}
GPU = Hardware(device="cuda", dtype="bfloat16")
DEVICES = 8
STEPS: dict[str, tuple[TrainingConfig, Lengths]] = {
    "sft, 8 rows of 1024 tokens": (SFTConfig(batch_size=8), Lengths(512, (512,))),
    "reinforce, 8 prompts of 256 tokens, 8 completions of 256": (
        ReinforceConfig(batch_size=8, group_size=8, max_new_tokens=256),
        Lengths(256),
    ),
}
PARTS = ("weights", "adapter", "activations", "logits", "cache")
ALLOWANCE = 0.9
"""Share of a GPU's memory that may be counted on; the rest is lost between allocations."""
HEAD = ("model", *PARTS, "peak", "peak with checkpointing", "and FSDP over 8", "fits", "s/step", "s/step on 8")


def lines() -> Iterator[str]:
    """The tables, in Markdown."""
    for title, (settings, row) in STEPS.items():
        yield f"*{title}*, GB per GPU:"
        yield ""
        yield f"| {' | '.join(HEAD)} |"
        yield "|---" * len(HEAD) + "|"
        for name, model in MODELS.items():
            yield _line(name, model, settings, row)
        yield ""


def _line(name: str, model: str, settings: TrainingConfig, row: Lengths) -> str:
    shape = KNOWN[model]
    batch = micro_batch(settings, GPU, [row])
    memory = step_memory(shape, GPU, settings, batch)
    saving = replace(settings, gradient_checkpointing=True)
    saved, spread = (step_memory(shape, GPU, saving, batch, shards=shards) for shards in (1, DEVICES))
    seconds = step_seconds(shape, GPU, settings, batch, A100)
    cells = [_gb(memory.parts()[part]) for part in PARTS]
    cells += [_gb(each.peak) for each in (memory, saved, spread)]
    cells += [_fits(memory, saved), f"{seconds:.2g}", f"{seconds / DEVICES / SCALING:.2g}"]
    return f"| {name} | {' | '.join(cells)} |"


def _fits(memory: Memory, saved: Memory) -> str:
    room = ALLOWANCE * A100.memory
    return "yes" if memory.peak <= room else "with checkpointing" if saved.peak <= room else "no"


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f}"


if __name__ == "__main__":
    print("\n".join(lines()).rstrip())
