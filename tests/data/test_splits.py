"""The held-out split depends on the prompt and on nothing else."""

import unicodedata

import pytest

from conf.schema import Split
from stages.rows import Row
from stages.splits import split_of

PROMPTS = [f"What is {number} squared?" for number in range(4000)]


def split(prompt: str, held_out: float = 0.2) -> Split:
    return split_of(Row(prompt=prompt), held_out)


@pytest.mark.parametrize("held_out", [0.05, 0.2, 0.5])
def test_shares(held_out: float) -> None:
    parts = [split(prompt, held_out) for prompt in PROMPTS]
    deviation = 4 * (held_out / 2 * (1 - held_out / 2) * len(PROMPTS)) ** 0.5
    for part in (Split.select, Split.gate):
        assert abs(parts.count(part) - held_out / 2 * len(PROMPTS)) < deviation


def test_a_larger_share_keeps_what_a_smaller_one_held_out() -> None:
    for prompt in PROMPTS:
        parts = [split(prompt, held_out) for held_out in (0.9, 0.5, 0.2, 0.1)]
        kept = [part for part in parts if part is not Split.train]
        assert len(set(kept)) <= 1, "a row never moves between select and gate"
        assert parts[: len(kept)] == kept, "nor back into what is held out at a smaller share"


VARIANTS = [
    str.upper,
    lambda text: f"  {text}\n",
    lambda text: text.replace(" ", "\u00a0\t "),
    lambda text: unicodedata.normalize("NFD", text),
    lambda text: text.replace("?", "\uff1f"),
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_near_duplicates_do_not_straddle(variant) -> None:
    prompts = [f"Où est {prompt}" for prompt in PROMPTS[:500]]
    assert len({split(prompt, 0.5) for prompt in prompts}) == 3
    assert all(split(prompt, 0.5) is split(variant(prompt), 0.5) for prompt in prompts)


def test_system_message_and_form_of_the_conversation_play_no_part() -> None:
    for prompt in PROMPTS[:200]:
        user = {"role": "user", "content": prompt}
        system = {"role": "system", "content": "Be brief."}
        forms = [
            Row(prompt=prompt, system="x"),
            Row(messages=[user]),
            Row(messages=[system, user]),
            Row(prompt=prompt, response="y", reference=3, row={"z": 1}),
        ]
        assert {split_of(form, 0.5) for form in forms} == {split(prompt, 0.5)}


def test_the_split_of_known_prompts_never_changes() -> None:
    """A change here would put rows that earlier runs trained on into the held-out parts of later ones."""
    known = {"a": Split.train, "b": Split.gate, "e": Split.select, "f": Split.gate, "g": Split.select}
    assert {prompt: split(prompt, 0.5) for prompt in known} == known
