"""Drift: the divergence from the original base, against direct computation and against plain Monte Carlo."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from conf.errors import UserError
from conf.measuring import ScoringConfig
from conf.rewards import load_rewards
from conf.schema import SuiteRole
from stages.contract import Hardware, ModelRef, StageContext, Suite
from stages.drift import LONGEST, Drift, DriftMeter, Reply, divergence, drift_rows, estimate, log_probs
from stages.fold import load_folded
from stages.generate import generate
from stages.kept_replies import FILE
from stages.models import load_tokenizer, stop_token_ids
from stages.rows import Row, write_rows
from stages.scores import score_models
from stages.suite_scores import LoadedModel
from tests.stages.families import FAMILIES

NEW_TOKENS = 6
PROMPTS = ["Name a colour.", "2+2?", "Say yes.", "Who wrote it?", "Is ice cold?"]


@pytest.fixture
def chain(tiny: ModelRef, make_adapter: Any) -> ModelRef:
    """The tiny model after two stages."""
    first = tiny.with_adapter(make_adapter(tiny, "first", std=0.1))
    return first.with_adapter(make_adapter(first, "second", std=0.1))


@pytest.fixture
def context(tmp_path: Path, hardware: Hardware) -> Any:
    """A context with one general suite, of the given prompts."""

    def make(start: ModelRef, prompts: list[str], **models: ModelRef) -> StageContext:
        out_dir = tmp_path / "out"
        out_dir.mkdir(exist_ok=True)
        rows = write_rows(tmp_path / "rows.jsonl", [Row(prompt=prompt) for prompt in prompts])
        suite = Suite(role=SuiteRole.general, rows=rows, rewards={}, max_new_tokens=NEW_TOKENS)
        models = {"start": start, **models}
        return StageContext(models=models, out_dir=out_dir, seed=3, hardware=hardware, suites={"general": suite})

    return make


def measure(ctx: StageContext, rows: int, **models: ModelRef) -> dict[str, Any]:
    """The drift of every model on the first rows."""
    meter = DriftMeter(ScoringConfig(drift_rows=rows, batch_size=16), ctx)
    return {label: meter.measure(LoadedModel(ref, ctx.hardware), label) for label, ref in models.items()}


def drawn(ref: ModelRef, model: Any, prompts: list[str], seed: int, samples: int = 1) -> list[Reply]:
    """Replies of a model at temperature 1."""
    tokenizer = load_tokenizer(ref)
    ids = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        for prompt in prompts
    ]
    completions = generate(
        model,
        tokenizer,
        ids,
        max_new_tokens=NEW_TOKENS,
        temperature=1.0,
        samples=samples,
        stop_ids=stop_token_ids(ref, tokenizer),
        seed=seed,
        batch_size=16,
    )
    return [Reply(one, list(reply.ids)) for one, replies in zip(ids, completions, strict=True) for reply in replies]


def test_both_models_in_memory_say_the_same(chain: ModelRef, tiny: ModelRef, hardware: Hardware, context: Any) -> None:
    found = measure(context(chain, PROMPTS), len(PROMPTS), chain=chain)["chain"]
    own, original = load_folded(chain, hardware).model, load_folded(tiny, hardware).model
    sums, lengths = [], []
    for reply in drawn(chain, own, PROMPTS, seed=3):
        ids = torch.tensor([reply.prompt + reply.tokens])
        with torch.no_grad():
            p, q = (torch.distributions.Categorical(logits=model(ids).logits[0]) for model in (own, original))
        kl = torch.distributions.kl_divergence(p, q)[len(reply.prompt) - 1 : -1]
        sums.append(float(kl.sum()))
        lengths.append(len(kl))
    assert found.mean == pytest.approx(sum(sums) / sum(lengths), rel=1e-4)
    assert found.stderr == pytest.approx(estimate(sums, lengths).stderr, rel=1e-3)


def test_many_plain_samples_say_the_same(chain: ModelRef, tiny: ModelRef, hardware: Hardware, context: Any) -> None:
    rows = 10 * PROMPTS
    found = measure(context(chain, rows), len(rows), chain=chain)["chain"]
    own, original = load_folded(chain, hardware).model, load_folded(tiny, hardware).model
    sums, lengths = [], []
    replies = drawn(chain, own, PROMPTS, seed=11, samples=40)
    for reply, *both in zip(replies, log_probs(own, replies), log_probs(original, replies), strict=True):
        tokens = torch.tensor(reply.tokens)[:, None]
        ratio = [of_one.gather(1, tokens).sum() for of_one in both]
        sums.append(float(ratio[0] - ratio[1]))
        lengths.append(len(reply.tokens))
    plain = estimate(sums, lengths)
    error = (found.stderr**2 + plain.stderr**2) ** 0.5
    assert abs(found.mean - plain.mean) < 4 * error
    assert error < found.mean / 10  # a test that has something to say
    assert found.stderr * len(rows) ** 0.5 < plain.stderr * len(sums) ** 0.5  # less variance per reply


@pytest.mark.parametrize("family", ["llama", "gemma3", "granite"])
def test_the_likeliest_tokens_are_the_samplers(family: str, tiny: ModelRef) -> None:
    """Positions, and the prompts' common beginning: what the sampler calls likeliest is the likeliest here, too."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[family]).eval()
    prompts = [[5, 6, 7, 8, 9, 10, 11, *rest] for rest in ([3], [4, 12, 13, 14, 15, 16])]
    settings = {"max_new_tokens": 8, "stop_ids": [2], "seed": 0, "batch_size": 2}
    replies = [
        Reply(prompt, list(completions[0].ids))
        for prompt, completions in zip(prompts, generate(model, load_tokenizer(tiny), prompts, **settings), strict=True)
    ]
    together = list(log_probs(model, replies))
    for reply, found in zip(replies, together, strict=True):
        assert found.argmax(-1).tolist() == reply.tokens
        plain = model(torch.tensor([reply.prompt + reply.tokens])).logits[0].log_softmax(-1)
        torch.testing.assert_close(found, plain[len(reply.prompt) - 1 : -1].detach(), atol=1e-4, rtol=1e-4)


def test_the_base_has_not_moved(tiny: ModelRef, context: Any) -> None:
    found = measure(context(tiny, PROMPTS), len(PROMPTS), base=tiny)["base"]
    assert (found.mean, found.stderr) == (0.0, 0.0)
    twin = replace(tiny, sha256="another file with the same weights")  # has to be computed
    found = measure(context(twin, PROMPTS, original=tiny), len(PROMPTS), base=twin)["base"]
    assert (found.mean, found.stderr) == (0.0, 0.0)


def test_the_whole_chain_counts_not_the_last_stage(chain: ModelRef, tiny: ModelRef, context: Any) -> None:
    first = tiny.with_adapter(chain.adapters[0])
    from_base = measure(context(chain, PROMPTS), len(PROMPTS), first=first, chain=chain)
    from_first = measure(context(chain, PROMPTS, original=first), len(PROMPTS), first=first, chain=chain)
    assert from_first["first"].mean == 0.0
    assert from_base["chain"].mean > 1.5 * from_first["chain"].mean > 0
    assert from_base["first"].mean > 0


def test_nothing_is_left_on_disk(chain: ModelRef, context: Any) -> None:
    ctx = context(chain, PROMPTS)
    measure(ctx, 2, chain=chain)
    assert {path.name for path in ctx.out_dir.iterdir()} == {FILE}


def test_which_prompts(tmp_path: Path) -> None:
    def suite(role: SuiteRole, count: int, **settings: Any) -> Suite:
        rows = write_rows(tmp_path / f"{role.name}{count}.jsonl", [Row(prompt=str(number)) for number in range(count)])
        return Suite(role=role, rows=rows, rewards={}, **settings)

    suites = {
        "task": suite(SuiteRole.task, 9),
        "facts": suite(SuiteRole.general, 5, max_rows=4),
        "formats": suite(SuiteRole.general, 6),
    }
    chosen = drift_rows(suites, 7)
    assert {name: [row.prompt for row in rows] for name, rows in chosen.items()} == {
        "facts": ["0", "1", "2", "3"],
        "formats": ["0", "1", "2"],
    }
    assert list(drift_rows(suites, 3)) == ["facts"]
    assert drift_rows(suites, 0) == {} == drift_rows({"task": suites["task"]}, 7)


def test_by_hand() -> None:
    """Two positions of two tokens, one of which is impossible; and the error of a ratio."""
    own = torch.tensor([[0.5, 0.5], [1.0, 0.0]]).log()
    original = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log()
    first, second = (math.log(2) + math.log(2 / 3)) / 2, math.log(2)
    assert divergence(own, original) == pytest.approx(first + second, abs=1e-6)
    with pytest.raises(UserError, match="2 tokens in its vocabulary and the original base 3"):
        divergence(own, torch.zeros(2, 3))
    # 2 replies of 1 and 3 tokens with sums 1 and 1: ratio 0.5, residuals 0.5 and -0.5
    assert estimate([1.0, 1.0], [1, 3]).mean == 0.5
    assert estimate([1.0, 1.0], [1, 3]).stderr == pytest.approx((0.5 * 2) ** 0.5 / 4)
    assert estimate([1.0], [2]).stderr is None


def test_long_replies_are_cut(chain: ModelRef, tmp_path: Path, hardware: Hardware) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [Row(prompt="Go on.")])
    suite = Suite(role=SuiteRole.general, rows=rows, rewards={}, max_new_tokens=200)
    ctx = StageContext(models={"start": chain}, out_dir=tmp_path, seed=0, hardware=hardware, suites={"general": suite})
    measure(ctx, 1, chain=chain)
    kept = json.loads((tmp_path / FILE).read_text())
    assert [len(reply) for reply in kept["replies"]] == [LONGEST]


def test_what_is_known_is_not_measured_again(chain: ModelRef, tiny: ModelRef, context: Any, tmp_path: Path) -> None:
    done: list[str] = []
    ctx = context(chain, PROMPTS, original=tiny)
    ctx = replace(ctx, scores=tmp_path / "scores", progress=lambda what, *_: done.append(what))
    suite = replace(
        ctx.suites["general"], id="general", rewards=load_rewards({"exact": {"type": "regex", "pattern": "a"}})
    )
    models = {"base": tiny, "chain": chain}
    cfg = ScoringConfig(recheck=0)
    first = score_models(models, cfg, replace(ctx, suites={"general": suite}))
    assert first.drift["base"] == Drift(0.0, 0.0)
    assert first.drift["chain"].mean > 0.1
    assert "drift: chain" in done
    done.clear()
    again = score_models({"other": chain}, cfg, replace(ctx, suites={"renamed": suite}))
    assert (again.drift["other"], done) == (first.drift["chain"], [])
    other = score_models({"chain": chain}, replace(cfg, drift_rows=2), replace(ctx, suites={"general": suite}))
    assert other.drift["chain"] != first.drift["chain"]
    assert set(done) == {"drift: chain"}
    assert not score_models(models, cfg, replace(ctx, suites={"task": replace(suite, role=SuiteRole.task)})).drift
