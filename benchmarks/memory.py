"""The estimate of `stages.cost` against what a stage really takes: `python benchmarks/memory.py [CASE ...]`.

Every case is a stage on SmolLM2-135M in float32 on the CPU, in a process of its own that has imported all that `ratchet
run` imports; its peak is the kernel's `VmHWM`, which also counts pages of libraries and files (and not, as `ru_maxrss`
would, the memory of the process that started it). Tokens are what the estimate expects, and what the largest tree of
prefixes had: completions and prompts that agree are computed once, which the estimate cannot know.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conf.schema import ModelConfig
from conf.text_rewards import RegexConfig
from conf.training import ReinforceConfig, SFTConfig, TrainingConfig
from stages.contract import Hardware, StageContext
from stages.cost import Batch, Memory, step_memory
from stages.cost_batches import counter, longest_rows, micro_batch
from stages.disk import size_text
from stages.generators.arithmetic import arithmetic
from stages.generators.tool_calls import tool_calls
from stages.hardware import resolve_hardware
from stages.identity import model_directory, resolve_model
from stages.rows import Row, write_rows
from stages.shapes import KNOWN
from stages.table import table

STEPS = 2


@dataclass(frozen=True)
class Case:
    """A stage with settings, and which rows it gets: sums (short) or tool calls (long)."""

    settings: TrainingConfig
    rows: str


def _cases() -> dict[str, Case]:
    short = SFTConfig(max_steps=STEPS, batch_size=16, n_samples=0)
    sampled = ReinforceConfig(max_steps=STEPS, batch_size=8, group_size=8, max_new_tokens=6, n_samples=0)
    long = replace(sampled, batch_size=4, max_new_tokens=48)
    return {
        "sft-short": Case(short, "sums"),
        "sft-long": Case(replace(short, batch_size=8), "calls"),
        "sft-long-checkpointing": Case(replace(short, batch_size=8, gradient_checkpointing=True), "calls"),
        "sft-long-stock": Case(replace(short, batch_size=8, shared_prefix=False), "calls"),
        "reinforce-short": Case(sampled, "sums"),
        "reinforce-long": Case(long, "calls"),
        "reinforce-long-checkpointing": Case(replace(long, gradient_checkpointing=True), "calls"),
    }


CASES = _cases()


def rows_of(kind: str) -> list[Row]:
    """Prepared rows, as many as the cases need."""
    if kind == "sums":
        sums = arithmetic(256, 0)
        return [Row(prompt=s["question"], system="You add numbers.", response=str(s["answer"])) for s in sums]
    system = "Answer a parcel shop's caller with one JSON object only. " * 6
    return [Row(prompt=c["caller"], system=system, response=c["response"]) for c in tool_calls(256, 0)]


def estimate(name: str, tokens: int = 0) -> tuple[Batch, Memory]:
    """What is expected of a case, from its settings and rows alone; or from the tokens that are really computed."""
    case, hardware = CASES[name], hardware_here()
    directory = model_directory(resolve_model(ModelConfig(), "float32"))
    lengths = longest_rows(rows_of(case.rows), case.settings.batch_size, counter(directory))
    batch = micro_batch(case.settings, hardware, lengths)
    batch = replace(batch, tokens=tokens or batch.tokens)
    return batch, step_memory(KNOWN[ModelConfig().id], hardware, case.settings, batch)


def hardware_here() -> Hardware:
    """This machine's CPU."""
    from conf.hardware import Device, HardwareConfig

    return resolve_hardware(HardwareConfig(device=Device.cpu))


def measure(name: str) -> dict[str, int]:
    """Run a case in this process; returns its peak in bytes, and the most tokens that were computed at once."""
    import flows.posttrain
    import flows.tracking  # noqa: F401  (what a run has in memory besides)
    from stages import shared_prefix
    from stages.reinforce import run_reinforce
    from stages.sft import run_sft

    sizes = [0]
    own = shared_prefix.Question.of

    def watched(**inputs: Any) -> Any:
        found = own(**inputs)
        sizes.append(len(found.tree.ids) if found else inputs["input_ids"].numel())
        return found

    shared_prefix.Question.of = watched  # type: ignore[method-assign,assignment]
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        data = {part: write_rows(Path(folder, f"{part}.jsonl"), rows_of(case.rows)) for part in ("train", "select")}
        ctx = StageContext(
            models={"start": resolve_model(ModelConfig(), "float32")},
            out_dir=Path(folder),
            seed=0,
            hardware=hardware_here(),
            data=data,
            rewards={"digits": RegexConfig(type="regex", pattern="[0-9]")},
        )
        if isinstance(case.settings, ReinforceConfig):
            run_reinforce(case.settings, ctx)
        else:
            run_sft(case.settings, ctx)  # type: ignore[arg-type]
    return {"peak": peak(), "tokens": max(sizes)}


def peak() -> int:
    """The most bytes that this process ever had in memory (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def measured(name: str) -> dict[str, int]:
    """The same in a fresh process."""
    command = [sys.executable, __file__, "--measure", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(names: Sequence[str]) -> list[dict[str, str]]:
    """One row per case."""
    rows = []
    for name in names:
        (batch, expected), found = estimate(name), measured(name)
        rows.append(
            {
                "case": name,
                "estimated": size_text(expected.peak),
                "measured": size_text(found["peak"]),
                "difference": f"{expected.peak / found['peak'] - 1:+.0%}",
                "tokens": f"{batch.tokens} / {found['tokens'] or '?'}",
                "for these": size_text(estimate(name, found["tokens"])[1].peak),
            }
        )
    return rows


def main() -> None:
    """Compare the cases asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="of " + ", ".join(CASES))
    parser.add_argument("--measure", metavar="CASE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
    else:
        print(table(compare(arguments.cases or list(CASES))))


if __name__ == "__main__":
    main()
