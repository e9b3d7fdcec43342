"""Mistakes in the rows: their file, their mapping, what a step needs of them."""

from tests.flows.mistakes.project import ROWS, Mistake, override


def rows(name: str, content: str | bytes | None, *overrides: str, says: list[str], file: str = "rows.jsonl") -> Mistake:
    """A mistake in the file of rows."""
    return Mistake(name, tuple(says), (f"data.qa.source={file}", *overrides), {file: content})


SAME = '{"question": "same", "answer": "1"}\n'
CSV, MAPPED = "r.csv", "data.qa.response=null"

FILES = [
    rows("missing file", None, says=["rows.jsonl: cannot be read: No such file", "(looked for /"]),
    rows("empty file", "", says=["rows.jsonl: the file is empty"]),
    rows(
        "latin-1", '{"question": "ä"}\n'.encode("latin-1"), says=["rows.jsonl, line 1: byte 0xe4", "save the file as"]
    ),
    rows("UTF-16", ROWS.encode("utf-16"), says=["rows.jsonl: the file is UTF-16; save it as UTF-8"]),
    rows("broken line", ROWS + '{"question": "q"\n', says=["rows.jsonl, line 61: is not valid JSON", "per line"]),
    rows("duplicate columns", "question,q,q\na,b,c\n", file=CSV, says=["r.csv, line 1: two columns are called 'q'"]),
    rows("missing cell", "question,answer\nq,a\nr\n", file=CSV, says=["r.csv, line 3: 1 cells", "has 2 columns"]),
    rows("unknown suffix", "x", file="r.xlsx", says=["r.xlsx: has no known suffix", ".csv, .tsv, .jsonl"]),
    rows("one row", SAME, says=["rows.jsonl: 1 rows", "none for select and gate", "add rows with other prompts"]),
    rows("no held-out rows", SAME * 50, says=["rows.jsonl: 50 rows with 1 different prompts", "raise held_out"]),
    rows(
        "training on rows that are all held out",
        ROWS,
        "+data.qa.held_out=1",
        says=["data.qa.held_out: 1 holds out all rows", "needs rows to train on: name another source", "or lower it"],
    ),
    rows("no training rows", ROWS, "held_out=0.9999", says=["rows.jsonl: 60 rows", "none for train", "lower held_out"]),
]

MAPPING = [
    rows("missing column", ROWS.replace("question", "q"), says=["no column 'question' for 'prompt'", "'q', 'answer'"]),
    rows("missing value", ROWS + '{"question": "q"}\n', says=["rows.jsonl, line 61: has no value for 'answer'"]),
    rows("empty prompt", ROWS + '{"question": " ", "answer": 1}\n', says=["rows.jsonl, line 61: the prompt is empty"]),
    rows(
        "mixed types", ROWS + '{"question": ["q"], "answer": 1}\n', says=["line 61: 'prompt' is a list, expected text"]
    ),
    override("unknown field", "data.qa.prompt='{body}'", says=["rows.jsonl: the template for 'prompt'", "'question'"]),
    override(
        "no such function", "data.qa.source=python:none.rows", says=["python:none.rows: there is no module 'none'"]
    ),
]

NEEDS = [
    override("few rows", "sft.batch_size=64", says=["rows.jsonl: step 'sft'", "batch_size 64 x grad_accum 1 = 64"]),
    override(
        "few prompts", "reinforce.grad_accum=9", says=["rows.jsonl: step 'reinforce'", "training prompts", "= 72"]
    ),
    override("no reply", MAPPED, says=["rows.jsonl, line 2: has no response", "step 'sft'", "data.qa.response"]),
    rows(
        "no reply to look at",  # on the way: line 1 is held out
        ROWS.replace("answer", "response").replace(', "response": "0"', ""),
        MAPPED,
        "data.qa.reference=null",
        "sft.eval_steps=2",
        says=["rows.jsonl, line 1: has no response"],
    ),
    override("no pair", "pipeline.preference.data=qa", says=["rows.jsonl, line 2: has no chosen", "data.qa.chosen"]),
    override(
        "a gate on what is learnt",
        "+data.whole={source: rows.jsonl, prompt: question, reference: answer, held_out: 1}",
        "+suite.whole={data: whole, reward: right, role: general}",
        "+pipeline.gate={stage: gate, start: sft, baseline: base}",
        says=["suite.whole: ", " rows ask what step 'sft' learns from, first rows.jsonl, line", "the same held_out"],
    ),
    override("no reference", "data.qa.reference=null", says=["rows.jsonl, line 2: reward 'numeric'", "is missing"]),
    rows("odd reference", ROWS.replace('"118"', '"none"'), says=["rows.jsonl, line 60: reward 'numeric'", "'none'"]),
]
