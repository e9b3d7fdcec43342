"""The preview shows what the model sees, and the types of the rest."""

import pytest

from stages.preview import preview
from stages.rows import Row


def test_rows_as_text() -> None:
    rows = [Row(prompt="Hi", response="a\nb", reference="69", row={"n": 1, "s": "1"}), Row(prompt="Yo", row={})]
    assert preview(rows, ["<user>Hi\n<assistant>", "<user>Yo"], ["train", "gate"]).splitlines() == [
        "row 1 (train)",
        "  prompt     | <user>Hi",
        "             | <assistant>",
        "  response   | a",
        "             | b",
        '  reference  | "69"',
        "  columns    | n: 1",
        '             | s: "1"',
        "",
        "row 2 (gate)",
        "  prompt     | <user>Yo",
        "  columns    | (none)",
    ]


def test_long_columns_are_cut_and_say_so() -> None:
    text = preview([Row(prompt="x", row={"page": "y" * 5000})], ["x"], ["train"])
    assert len(text) < 600 and "(5002 characters)" in text


def test_every_row_needs_its_rendered_prompt() -> None:
    with pytest.raises(ValueError, match="shorter"):
        preview([Row(prompt="x"), Row(prompt="y")], ["x"], ["train", "train"])
