"""A GRPO step of stock TRL against one of Ratchet: `python benchmarks/reinforce.py [CONFIGURATION ...]`.

Same model, prompts, LoRA, seeds and arguments; one fresh process after the other (stock, Ratchet, stock, ...), medians
over all steps but the first. The model is the plain SmolLM2-135M, which does not know the tasks, so that completions of
a group soon differ: a model that knows its task repeats itself, and then more is shared.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

STEPS = 4
PARTS = ("sampling", "reference", "forward-backward", "step")


@dataclass(frozen=True)
class Configuration:
    """`batch_size` prompts of a kind in `grad_accum` micro-batches; `group_size` completions of `tokens` tokens."""

    batch_size: int
    group_size: int
    tokens: int
    kind: str
    grad_accum: int = 1


CONFIGURATIONS = {
    "short": Configuration(4, 4, 16, "sums"),
    "arithmetic": Configuration(8, 8, 6, "demo"),
    "tool_calls": Configuration(4, 8, 48, "calls"),
    "long": Configuration(2, 8, 32, "numbers", grad_accum=2),  # in one micro-batch, TRL needs more than 24 GB
}


def rows(kind: str, count: int) -> Iterator[Any]:
    """Prompts as Ratchet has them: sums of 47 tokens, the demo's of 35, calls of about 135, numbers of 500."""
    from stages.generators.arithmetic import arithmetic
    from stages.generators.tool_calls import tool_calls
    from stages.rows import Row

    if kind == "calls":
        system = yaml.safe_load((ROOT / "conf/data/tool_calls.yaml").read_text())["system"].format()
        for call in tool_calls(count, 0):
            yield Row(prompt=call["caller"], system=system)
    elif kind == "numbers":
        generator = random.Random(0)
        for _ in range(count):
            yield Row(prompt="Add " + " ".join(str(generator.randrange(10)) for _ in range(241)), system="Be brief.")
    else:
        for sum_ in arithmetic(count, 0):
            yield Row(prompt=sum_["question"], system="You add numbers." if kind == "demo" else None)


def digits(completions: list[Any], **_: Any) -> list[float]:
    """A reward that every group disagrees on."""
    texts = [completion if isinstance(completion, str) else completion[0]["content"] for completion in completions]
    return [sum(character.isdigit() for character in text) / (1 + len(text)) for text in texts]


def trainer(variant: str, configuration: Configuration, folder: Path) -> Any:
    """Stock TRL's trainer, or Ratchet's, with the same arguments."""
    from conf.schema import ModelConfig
    from conf.training import LoraConfig, ReinforceConfig
    from stages.chat import prompt_ids
    from stages.contract import Hardware, StageContext
    from stages.fold import load_folded
    from stages.grpo import OnPolicyTrainer, Resampling
    from stages.grpo_arguments import grpo_arguments
    from stages.hardware import prepare
    from stages.identity import resolve_model
    from stages.models import load_tokenizer
    from stages.training import new_adapter

    # Last, because `stages` says how torch's threads wait, for both variants alike.
    import trl  # isort: skip
    from datasets import Dataset  # isort: skip

    hardware = Hardware(threads=os.cpu_count() or 1)
    prepare(hardware, 0)
    ref = resolve_model(ModelConfig(), "float32")
    ctx = StageContext(models={"start": ref}, out_dir=folder, seed=0, hardware=hardware)
    cfg = ReinforceConfig(
        batch_size=configuration.batch_size // configuration.grad_accum,
        grad_accum=configuration.grad_accum,
        group_size=configuration.group_size,
        max_new_tokens=configuration.tokens,
        max_steps=STEPS,
    )
    prompts = list(rows(configuration.kind, STEPS * configuration.batch_size))
    tokenizer = load_tokenizer(ref)
    shared = {
        "model": load_folded(ref, hardware).model,
        "args": grpo_arguments(cfg, ctx, STEPS),
        "reward_funcs": digits,
        "processing_class": tokenizer,
        "peft_config": new_adapter(LoraConfig()),
    }
    if variant == "stock":
        return trl.GRPOTrainer(
            train_dataset=Dataset.from_list([{"prompt": row.conversation} for row in prompts]), **shared
        )
    return OnPolicyTrainer(
        prompt_ids=[prompt_ids(tokenizer, ref.config, row) for row in prompts],
        order=range(len(prompts)),
        resampling=Resampling(attempts=0, pool=[], totals=lambda *_: []),
        shared_prefix=True,
        max_divergence=cfg.vllm.max_divergence,
        say=print,
        **shared,
    )


@contextlib.contextmanager
def timed(owner: Any, method: str, times: dict[str, float], part: str) -> Iterator[None]:
    """Add up what the calls of a method take; log-probabilities without gradients are those of the reference."""
    import torch

    original = getattr(owner, method)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        name = "forward" if part == "reference" and torch.is_grad_enabled() else part
        began = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            times[name] += time.perf_counter() - began

    setattr(owner, method, wrapper)
    yield
    setattr(owner, method, original)


def measure(variant: str, configuration: Configuration) -> dict[str, Any]:
    """Seconds of every step by part, the most memory that was used (MiB), and the floor for what was computed."""
    from transformers import TrainerCallback

    from stages import shared_prefix

    steps: list[dict[str, float]] = []
    times: dict[str, float] = defaultdict(float)
    questions: list[Any] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            times.clear()
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            step = {**times, "step": time.perf_counter() - self.began}
            step["forward-backward"] = step["training"] - step["sampling"] - step["reference"]
            steps.append(step)

    own = shared_prefix.Question.of
    shared_prefix.Question.of = lambda **inputs: questions.append(own(**inputs)) or questions[-1]  # type: ignore
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        made = trainer(variant, configuration, Path(folder))
        sampling = "_generate_single_turn" if variant == "stock" else "_sample"
        for method, part in {
            sampling: "sampling",
            "_get_per_token_logps_and_entropies": "reference",
            "training_step": "training",
        }.items():
            stack.enter_context(timed(made, method, times, part))
        made.add_callback(Clock())
        made.train()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    shared_prefix.Question.of = own  # type: ignore[method-assign]
    return {
        "steps": steps[1:],
        "memory": memory,
        "floor": floor(made, configuration, questions[1 + 2 * configuration.grad_accum :]) if questions else None,
    }


def floor(made: Any, configuration: Configuration, questions: Sequence[Any]) -> dict[str, float]:
    """Seconds for the distinct prefixes alone, at the speed of one large product and of one pass over the weights.

    Multiplications and additions: two per weight and token. Adapters, attention and everything elementwise are free.
    """
    import torch

    from benchmarks.reward_overhead import seconds

    model = made.model.get_base_model()
    head = model.get_output_embeddings().weight.numel()
    body = sum(weight.numel() for weight in model.base_model.layers.parameters())
    left, right = torch.randn(1024, 1024), torch.randn(1024, 4096)
    weights = torch.randn(2**26)
    operations = 2 * 1024 * 1024 * 4096 / seconds(lambda: left @ right)
    bandwidth = 4 * len(weights) / seconds(lambda: torch.sum(weights))
    tokens = configuration.grad_accum * statistics.median(len(question.tree.ids) for question in questions)
    predicting = configuration.grad_accum * statistics.median(len(question.nodes) for question in questions)
    once = 2 * (tokens * body + predicting * head) / operations
    decoding = configuration.tokens * 4 * (body + head) / bandwidth
    parts = {"sampling": max(once, decoding), "reference": once, "forward-backward": 2 * once}
    return {**parts, "step": sum(parts.values()), "gflops": operations / 1e9, "gbytes": bandwidth / 1e9}


def run(variant: str, name: str) -> dict[str, Any]:
    """Measure in a fresh process."""
    command = [sys.executable, __file__, "--measure", variant, name]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def compare(name: str, rounds: int) -> None:
    """Print a configuration's rows."""
    found: dict[str, list[dict[str, Any]]] = {"stock": [], "ratchet": []}
    for _ in range(rounds):
        for variant, results in found.items():
            results.append(run(variant, name))
    median = {variant: medians(results) for variant, results in found.items()}
    least = found["ratchet"][-1]["floor"]
    ratios = {part: median["stock"][part] / median["ratchet"][part] for part in (*PARTS, "memory")}
    for variant, values in {**median, "floor": least, "ratio": ratios}.items():
        memory = f"{values['memory']:{13}.{2 if variant == 'ratio' else 0}f}" if "memory" in values else ""
        print(f"{name:11} {variant:8}" + "".join(f"{values[part]:18.2f}" for part in PARTS) + memory)
    print(f"{'':20}floor: at {least['gflops']:.0f} GFLOP/s and {least['gbytes']:.0f} GB/s", flush=True)


def medians(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of every part over all steps, and of the memory over all processes."""
    steps = [step for result in results for step in result["steps"]]
    parts = {part: statistics.median(step[part] for step in steps) for part in PARTS}
    return {**parts, "memory": statistics.median(result["memory"] for result in results)}


def main() -> None:
    """Compare the configurations asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configurations", nargs="*", metavar="CONFIGURATION", help="of " + ", ".join(CONFIGURATIONS))
    parser.add_argument("--rounds", type=int, default=2, help="processes per variant (2)")
    parser.add_argument("--measure", nargs=2, metavar=("VARIANT", "CONFIGURATION"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        variant, name = arguments.measure
        print(json.dumps(measure(variant, CONFIGURATIONS[name])))
        return
    print(f"{'':20}" + "".join(f"{part:>16} s" for part in PARTS) + f"{'memory MiB':>13}")
    for name in arguments.configurations or CONFIGURATIONS:
        compare(name, arguments.rounds)


if __name__ == "__main__":
    main()
