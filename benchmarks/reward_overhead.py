"""What a reward set adds to a bare reward, per call: `python benchmarks/reward_overhead.py`.

In this process: the CPU time of `RewardSet.score_all` minus that of the reward's closure, over the same samples; the
limit is 50 microseconds. Through worker processes: the time per call of a function that does nothing, the start of a
set, and how a function that waits is spread over workers.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conf.rewards import load_rewards
from rewards.contract import Sample
from rewards.library import build
from rewards.scoring import RewardSet

CALLS = 2000
REPEATS = 7
LIMIT = 50e-6
IN_PROCESS: dict[str, dict[str, Any]] = {
    "exact": {"type": "exact"},
    "numeric": {"type": "numeric"},
    "json": {"type": "json", "keys": ["answer"]},
    "keyword": {"type": "keyword", "words": ["answer", "sorry"]},
}
SAMPLES = [Sample("What is 41 + 28?", f'{{"answer": {number}}}', "69", {"n": number}) for number in range(CALLS)]


def seconds(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """The shortest of several times of one call of `function`: what it takes when nothing else disturbs it."""
    times = []
    for _ in range(REPEATS):
        began = clock()
        function()
        times.append(clock() - began)
    return min(times)


def in_process() -> bool:
    """Print a row per reward; whether all are under the limit."""
    print(f"{'in this process':16} {'bare':>10} {'in a set':>10} {'overhead':>10}   microseconds per call")
    within = True
    for name, settings in IN_PROCESS.items():
        configs = load_rewards({name: settings})
        reward, rewards = build(configs[name]), RewardSet(configs)
        bare = seconds(lambda reward=reward: [reward(sample) for sample in SAMPLES], time.process_time) / CALLS
        whole = seconds(lambda rewards=rewards: rewards.score_all(SAMPLES), time.process_time) / CALLS
        within &= whole - bare < LIMIT
        print(f"{name:16} {bare * 1e6:10.1f} {whole * 1e6:10.1f} {(whole - bare) * 1e6:10.1f}")
    return within


def in_workers(folder: Path) -> None:
    """Print what worker processes cost and save."""
    (folder / "nothing.py").write_text("def reward(completion): return 1\n", encoding="utf-8")
    (folder / "slow.py").write_text("import time\ndef reward(): time.sleep(0.2); return 1\n", encoding="utf-8")
    (folder / "batched.py").write_text(
        "def reward(completions: list[str]): return [1.0 for _ in completions]\n", encoding="utf-8"
    )
    print(f"\n{'in workers':16} {'start (ms)':>10} {'call (us)':>10} {'one (us)':>10}")
    for name in ("nothing", "batched"):
        configs = load_rewards({name: {"type": "custom", "path": f"{name}.py"}})
        start = seconds(lambda configs=configs: RewardSet(configs, folder).close())
        with RewardSet(configs, folder) as rewards:
            call = seconds(lambda rewards=rewards: rewards.score_all(SAMPLES)) / CALLS
            alone = seconds(lambda rewards=rewards: [rewards.score_all([one]) for one in SAMPLES[:200]]) / 200
        print(f"{name:16} {start * 1e3:10.0f} {call * 1e6:10.0f} {alone * 1e6:10.0f}")
    with RewardSet(load_rewards({"slow": {"type": "custom", "path": "slow.py"}}), folder) as rewards:
        for when in ("first", "second"):
            began = time.perf_counter()
            rewards.score_all(SAMPLES[:32])
            print(f"32 calls of 0.2 s, {when} batch: {time.perf_counter() - began:.2f} s on {os.cpu_count()} cores")


if __name__ == "__main__":
    within = in_process()
    with tempfile.TemporaryDirectory() as name:
        in_workers(Path(name))
    sys.exit(0 if within else 1)
