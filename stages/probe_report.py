"""From the probe's numbers to a decision, and to what a person reads."""

import textwrap
from collections.abc import Mapping, Sequence

from conf.measuring import ProbeConfig

OFTEN_EQUAL, OFTEN_CUT, HARDLY_DISTINCT = 0.5, 0.2, 0.25
"""Shares from which on the report says what to do about groups without variance, cut and repeated completions."""


WIDTH = 110
"""Characters of a line of the recommendation."""


def judge(cfg: ProbeConfig, metrics: Mapping[str, float]) -> tuple[str | None, str]:
    """The verdict (`stop`, `otherwise` or None to go on) and the recommendation in words.

    The point estimate decides, not a bound of its interval: 0 of 104 has an upper bound of 3.6%, so that with the
    default of 3% the upper bound would let a model through that never succeeds, and the lower bound would stop one
    that succeeds in 6%. A wrong stop costs one `probe.force=true`.
    """
    rate = metrics.get("success_rate")
    if rate is None:
        return _judge_variance(cfg, metrics)
    told = f"{_percent(rate)} of the samples succeed ({metrics['successes']:.0f} of {metrics['samples']:.0f})"
    if rate < cfg.min_success:
        told += f", under min_success {_percent(cfg.min_success)}: there is too little to reinforce."
        if metrics[_first_size(metrics)] < OFTEN_EQUAL:
            told += " (The rewards do tell completions apart; for a graded reward, probe.success_at may be lower.)"
        return _too_little(cfg, f"TOO LOW: {told}")
    if rate > cfg.max_success:
        told += f", over max_success {_percent(cfg.max_success)}: there is little left to learn."
        return None, f"WARNING: {told} Give harder prompts, or a reward that asks for more. Going on."
    return None, " ".join([f"{told[0].upper()}{told[1:]}: there is something to reinforce.", *_hints(metrics)])


def _judge_variance(cfg: ProbeConfig, metrics: Mapping[str, float]) -> tuple[str | None, str]:
    """Without a definition of success: there must at least be something to tell completions apart."""
    unknown = "Nothing tells what a success is: the rows have no reference, so give probe.success_at."
    if all(share == 1 for name, share in metrics.items() if name.startswith("all_equal_")):
        told = "TOO LOW: within every prompt all completions earn the same: there is nothing to reinforce."
        return _too_little(cfg, f"{told} {unknown}")
    return None, " ".join([unknown, "The rewards do tell completions apart; going on.", *_hints(metrics)])


def _too_little(cfg: ProbeConfig, told: str) -> tuple[str | None, str]:
    if cfg.force:
        return None, f"{told} Going on all the same, as probe.force says."
    if cfg.otherwise:
        return "otherwise", f"{told} Taking the step {cfg.otherwise!r}, as probe.otherwise says."
    return "stop", (
        f"{told} Run a short `sft` first (or a longer one) and start from it (probe.otherwise names a step to take in "
        "this case), or go on all the same with probe.force=true."
    )


def _hints(metrics: Mapping[str, float]) -> list[str]:
    hints, first = [], _first_size(metrics)
    if metrics[first] > OFTEN_EQUAL:
        hints.append(
            f"Of groups of {first.removeprefix('all_equal_')}, {_percent(metrics[first])} will teach nothing: "
            "reinforce.difficulty, reinforce.resample or a larger group_size help."
        )
    if metrics["truncated"] > OFTEN_CUT:
        hints.append(f"{_percent(metrics['truncated'])} are cut at max_new_tokens: raise it, or reward brevity.")
    if metrics["distinct"] < HARDLY_DISTINCT:
        hints.append("The samples of a prompt hardly differ: raise the temperature.")
    return hints


def _first_size(metrics: Mapping[str, float]) -> str:
    return next(name for name in metrics if name.startswith("all_equal_"))


def report(metrics: Mapping[str, float], rewards: Sequence[str], success: str, advice: str) -> str:
    """The probe's findings as text, the recommendation last."""
    lines = {
        "success": _success_line(metrics, success),
        "pass@k": _shares(metrics, "pass_at_"),
        "reward": f"{metrics['reward']:.3g} in all  "
        + "  ".join(f"{name} {metrics[f'reward_{name}']:.3g}" for name in rewards),
        "all equal": f"{_equal_shares(metrics)}  (predicted share of groups without variance, by group size)",
        "completions": f"{_percent(metrics['truncated'])} truncated  {_percent(metrics['distinct'])} distinct  "
        f"{metrics['completion_len']:.1f} tokens long  {metrics['tokens_per_second']:.0f} tokens per second",
        "time per call": "  ".join(f"{name} {_time(metrics[f'seconds_{name}'])}" for name in rewards),
    }
    shown = [f"{name:<13}  {text}" for name, text in lines.items() if text]
    head = f"{metrics['prompts']:.0f} prompts, {metrics['samples']:.0f} samples of the start model"
    return "\n".join([head, *shown, "", textwrap.fill(advice, WIDTH, break_on_hyphens=False)])


def _success_line(metrics: Mapping[str, float], success: str) -> str:
    if "success_rate" not in metrics:
        return ""
    interval = f"95% interval {_percent(metrics['success_low'])} to {_percent(metrics['success_high'])}"
    counted = f"{metrics['successes']:.0f} of {metrics['samples']:.0f}"
    return f"{_percent(metrics['success_rate'])}  ({counted}; {interval}; {success})"


def _shares(metrics: Mapping[str, float], prefix: str) -> str:
    return "  ".join(
        f"{name.removeprefix(prefix)}: {_percent(value)}" for name, value in metrics.items() if name.startswith(prefix)
    )


def _equal_shares(metrics: Mapping[str, float]) -> str:
    shares = {name: value for name, value in metrics.items() if name.startswith("all_equal_")}
    return "  ".join(
        f"{name.removeprefix('all_equal_')}: {_percent(value)}"
        + (f" to {_percent(shares[f'{name}_high'])}" if f"{name}_high" in shares else "")
        for name, value in shares.items()
        if not name.endswith("_high")
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _time(seconds: float) -> str:
    factor, unit = (1, "s") if seconds >= 0.1 else (1e3, "ms") if seconds >= 1e-4 else (1e6, "µs")
    return f"{factor * seconds:.2g} {unit}"
