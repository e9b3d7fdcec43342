"""Rows per second of an evaluation, against lm-evaluation-harness: `python benchmarks/evaluate.py [CONFIGURATION ...]`.

Same model (SmolLM2-135M, float32), prompts, lengths and greedy decoding; one fresh process after the other (lm-eval,
Ratchet, lm-eval, ...), both at the same batch sizes, of which the best counts for each. lm-eval's `hf` backend is timed
for its replies alone, Ratchet for replies and scores. Seconds are those of the clock and, for a machine that does other
work too, of the processor. Needs `pip install "ratchet[lm-eval]"`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

BATCH_SIZES = (32, 64, 128)


@dataclass(frozen=True)
class Configuration:
    """`rows` prompts of a kind, with at most `tokens` new tokens, scored by a reward set."""

    rows: int
    tokens: int
    kind: str
    reward: str


CONFIGURATIONS = {
    "arithmetic": Configuration(200, 16, "demo", "exact_number"),
    "tool_calls": Configuration(64, 48, "calls", "exact_call"),
}


CLOCKS = {"clock": time.perf_counter, "processor": time.process_time}


class Watch:
    """Seconds since it was made, by clock."""

    def __init__(self) -> None:
        self._began = {name: clock() for name, clock in CLOCKS.items()}

    def seconds(self) -> dict[str, float]:
        """Of every clock."""
        return {name: clock() - self._began[name] for name, clock in CLOCKS.items()}


def measure(variant: str, name: str, batch_size: int, most: int) -> dict[str, Any]:
    """Rows per second by clock, and the replies, in this process."""
    from benchmarks.reinforce import rows
    from conf.schema import ModelConfig
    from stages.contract import Hardware
    from stages.hardware import prepare
    from stages.identity import resolve_model

    configuration = CONFIGURATIONS[name]
    hardware = Hardware(threads=int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    prepare(hardware, 0)
    ref = resolve_model(ModelConfig(), "float32")
    asked = list(rows(configuration.kind, min(configuration.rows, most)))
    if variant == "ratchet":
        seconds, replies = by_ratchet(ref, hardware, asked, configuration, batch_size)
    else:
        seconds, replies = by_lm_eval(ref, asked, configuration.tokens, batch_size)
    return {"speed": {clock: len(asked) / each for clock, each in seconds.items()}, "replies": replies}


Measured = tuple[dict[str, float], list[str]]


def by_ratchet(ref: Any, hardware: Any, asked: list[Any], configuration: Configuration, batch_size: int) -> Measured:
    """Seconds for replies and scores, and the replies."""
    from conf.rewards import load_rewards
    from rewards.scoring import RewardSet
    from stages.fold import load_folded
    from stages.models import load_tokenizer
    from stages.packed import pack
    from stages.samples import answer

    file = yaml.safe_load((ROOT / f"conf/reward/{configuration.reward}.yaml").read_text())
    model, tokenizer = pack(load_folded(ref, hardware).model), load_tokenizer(ref)
    with RewardSet(load_rewards(file)) as rewards:
        watch = Watch()
        answers = answer(
            model, tokenizer, ref, asked, max_new_tokens=configuration.tokens, batch_size=batch_size, seed=0
        )
        replies = [completions[0].text for completions in answers]
        rewards.score_all([row.sample(reply) for row, reply in zip(asked, replies, strict=True)])
        return watch.seconds(), replies


def by_lm_eval(ref: Any, asked: list[Any], tokens: int, batch_size: int) -> Measured:
    """Seconds for the replies of lm-eval's `hf` backend, which loads the model itself, and the replies."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from stages.chat import prompt_string
    from stages.identity import model_directory
    from stages.models import load_tokenizer

    tokenizer = load_tokenizer(ref)
    settings = {"until": [], "do_sample": False, "max_gen_toks": tokens}
    prompts = [(prompt_string(tokenizer, ref.config, row), settings) for row in asked]
    requests = [Instance("generate_until", {}, arguments, place) for place, arguments in enumerate(prompts)]
    directory = str(model_directory(ref))
    backend = HFLM(pretrained=directory, dtype="float32", device="cpu", batch_size=batch_size)
    watch = Watch()
    replies = backend.generate_until(requests, disable_tqdm=True)
    return watch.seconds(), replies


def run(variant: str, name: str, batch_size: int, most: int) -> dict[str, Any]:
    """Measure in a fresh process."""
    command = [sys.executable, __file__, name, "--rows", str(most), "--measure", variant, str(batch_size)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def compare(name: str, rounds: int, batch_sizes: Sequence[int], most: int) -> None:
    """Print a configuration's rows."""
    results: dict[str, dict[int, list[dict[str, Any]]]] = {
        variant: {size: [] for size in batch_sizes} for variant in ("lm-eval", "ratchet")
    }
    for _ in range(rounds):
        for size in batch_sizes:
            for variant, measured in results.items():
                measured[size].append(run(variant, name, size, most))
    for clock in CLOCKS:
        bests = {}
        for variant, measured in results.items():
            speeds = {size: median(each, clock) for size, each in measured.items()}
            bests[variant] = max(speeds.values())
            tried = ", ".join(f"{speed:.2f} in batches of {size}" for size, speed in speeds.items())
            print(f"{name:11} {variant:7} rows per second of the {clock}: {tried}")
        print(f"{name:11} {bests['ratchet'] / bests['lm-eval']:.2f}x")
    replies = [measured[batch_sizes[0]][-1]["replies"] for measured in results.values()]
    same = sum(their == our for their, our in zip(*replies, strict=True)) / len(replies[0])
    print(f"{name:11} {same:.0%} of the replies are the same", flush=True)


def median(results: Sequence[dict[str, Any]], clock: str) -> float:
    """Rows per second."""
    return statistics.median(result["speed"][clock] for result in results)


def main() -> None:
    """Compare the configurations asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configurations", nargs="*", metavar="CONFIGURATION", help="of " + ", ".join(CONFIGURATIONS))
    parser.add_argument("--rounds", type=int, default=2, help="processes per variant and batch size (2)")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=BATCH_SIZES, help="the best counts")
    parser.add_argument("--rows", type=int, default=200, help="at most so many of a configuration (200)")
    parser.add_argument("--measure", nargs=2, metavar=("VARIANT", "BATCH_SIZE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        variant, batch_size = arguments.measure
        print(json.dumps(measure(variant, *arguments.configurations, int(batch_size), arguments.rows)))
        return
    for name in arguments.configurations or CONFIGURATIONS:
        compare(name, arguments.rounds, arguments.batch_sizes, arguments.rows)


if __name__ == "__main__":
    main()
