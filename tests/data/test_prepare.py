"""The files that stages read, and the identity under which they are cached."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf.errors import UserError
from conf.loader import load
from conf.schema import DataConfig
from stages.data import data_identity, prepare_data
from stages.rows import read_rows

ROOT = Path(__file__).parents[2]
ROWS = [{"q": f"What is {n} + {n}?", "a": 2 * n} for n in range(300)]


def config(source: str = "rows.jsonl", **settings: Any) -> DataConfig:
    return DataConfig(source=source, **{"prompt": "q", "reference": "a", **settings})


def write(folder: Path, rows: list[dict[str, Any]], name: str = "rows.jsonl") -> None:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def prepared(folder: Path, settings: DataConfig, held_out: float = 0.2, seed: int = 0) -> dict[str, list[Any]]:
    paths = prepare_data(settings, held_out, folder / "out", folder)
    assert list(paths) == ["train", "select", "gate"]
    return {part: [row.row["q"] for row in read_rows(path)] for part, path in paths.items()}


def test_every_row_is_in_one_part_in_source_order_with_its_types(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    parts = prepared(tmp_path, config())
    order = [row["q"] for row in ROWS]
    assert sorted(itertools.chain(*parts.values()), key=order.index) == order
    assert all(questions == sorted(questions, key=order.index) for questions in parts.values())
    row = read_rows(tmp_path / "out" / "gate.jsonl")[0]
    assert type(row.reference) is int and row.row == {"q": row.prompt, "a": row.reference}


def test_added_rows_and_another_seed_move_none(tmp_path: Path) -> None:
    write(tmp_path, ROWS[:200])
    before = prepared(tmp_path, config())
    write(tmp_path, [*reversed(ROWS), *ROWS[:50]])
    after = prepared(tmp_path, config(), seed=1)
    assert all(set(before[part]) <= set(after[part]) for part in before)
    assert not set(after["train"]) & {*after["select"], *after["gate"]}


@pytest.mark.parametrize(
    ("rows", "held_out", "parts"),
    [
        (ROWS[2:3] * 50, 0.2, ["50 rows", "1 different prompts", "select and gate", "held_out=0.2", "raise held_out"]),
        (ROWS[:5], 0.999, ["5 rows", "train", "lower held_out"]),
    ],
)
def test_an_empty_part_is_an_error(tmp_path: Path, rows: list[Any], held_out: float, parts: list[str]) -> None:
    write(tmp_path, rows)
    with pytest.raises(UserError) as caught:
        prepared(tmp_path, config(), held_out)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert not (tmp_path / "out").exists()


def test_rows_that_nobody_trains_on(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    parts = prepared(tmp_path, config(), held_out=1.0)
    assert parts["train"] == [] and len(parts["select"]) + len(parts["gate"]) == len(ROWS)
    smaller = prepared(tmp_path, config(), held_out=0.2)
    assert set(smaller["gate"]) < set(parts["gate"]) and set(smaller["select"]) < set(parts["select"])
    write(tmp_path, ROWS[2:3])
    with pytest.raises(UserError, match=r"leave none for (select|gate) at held_out=1; add rows with other prompts"):
        prepared(tmp_path, config(), held_out=1.0)


def test_identity_follows_content_and_mapping_only(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    write(tmp_path, ROWS, "copy.jsonl")
    identity = data_identity(config(), tmp_path)
    assert identity == data_identity(config(), tmp_path)
    assert identity == data_identity(config("copy.jsonl"), tmp_path), "where a file lies plays no part"
    assert identity == data_identity(config(split="test", name="x", args={"n": 1}), tmp_path), "not about files"
    assert identity == data_identity(config(held_out=1.0), tmp_path), "the share is told beside it"
    others = [config(prompt="{q}"), config(system="x"), config(reference=None), config(max_rows=10)]
    assert len({identity, *(data_identity(other, tmp_path) for other in others)}) == 5
    write(tmp_path, [*ROWS, ROWS[0]])
    assert data_identity(config(), tmp_path) != identity
    with pytest.raises(UserError, match=r"gone\.csv"):
        data_identity(config("gone.csv"), tmp_path)


def test_identity_of_a_function_follows_its_source_and_its_arguments(tmp_path: Path) -> None:
    module = tmp_path / "identity_rows.py"
    module.write_text("raise SystemExit('an identity must not run the module')\n")
    source = "python:identity_rows.rows"
    one, two = (data_identity(config(source, args={"n": n}), tmp_path) for n in (1, 2))
    assert one != two
    module.write_text("def rows(n): return [{'q': 'x', 'a': n}]\n")
    assert data_identity(config(source, args={"n": 1}), tmp_path) not in (one, two)


def test_identity_of_a_function_follows_the_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "asked").mkdir()
    texts = {
        "rows.py": "import json\nfrom asked.words import WORDS\ndef rows(): return [{'q': w} for w in WORDS]\n",
        "words.py": "from . import more\nWORDS = more.WORDS\n",
        "more.py": "from rows import x\nWORDS = ['a']\n",  # a circle
        "other.py": "",
    }
    for name, text in texts.items():
        (tmp_path / "asked" / name).write_text(text)
    identities = [data_identity(config("python:asked.rows.rows"), tmp_path)]
    for name in texts:
        (tmp_path / "asked" / name).write_text(f"{texts[name]}# changed\n")
        identities.append(data_identity(config("python:asked.rows.rows"), tmp_path))
    assert len({*identities}) == 4 and identities[-1] == identities[-2], "all but the one that is not imported"


@pytest.mark.parametrize(("name", "held_out_rows"), [("arithmetic", 300), ("tool_calls", 200), ("sample_qa", 4)])
def test_packaged_data_sections(tmp_path: Path, name: str, held_out_rows: int) -> None:
    text = (ROOT / "conf" / "data" / f"{name}.yaml").read_text()
    assert text.startswith(f"# @package data.{name}\n")
    paths = prepare_data(load(DataConfig, yaml.safe_load(text)), 0.2, tmp_path, ROOT)
    for path in paths.values():
        rows = read_rows(path)
        assert len(rows) >= held_out_rows
        assert all(row.prompt and row.response and row.response == row.reference for row in rows)


def test_identity_is_light() -> None:
    code = (
        "import sys; from pathlib import Path; from conf.schema import DataConfig\n"
        "from stages.data import data_identity\n"
        "data_identity(DataConfig(source='data/sample_qa.csv'), Path('.'))\n"
        "print({'torch', 'datasets', 'pyarrow', 'pandas', 'huggingface_hub'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "set()\n"


_PREPARE = """
import sys
from pathlib import Path
from conf.schema import DataConfig
from stages.data import prepare_once
folder = Path(sys.argv[1])
config = DataConfig(source="python:slowly.rows", prompt="question")
assert prepare_once(config, 0.2, folder / "prepared", folder)["train"].read_text()
"""


def test_two_processes_prepare_a_source_once(tmp_path: Path) -> None:
    (tmp_path / "slowly.py").write_text(
        "import time\n"
        "def rows():\n"
        f"    open({str(tmp_path / 'log')!r}, 'a').write('read ')\n"
        "    time.sleep(0.5)\n"
        "    yield from ({'question': f'{n} + 1?'} for n in range(50))\n"
    )
    (tmp_path / ".prepared.killed").mkdir()  # what a process left that was killed
    processes = [subprocess.Popen([sys.executable, "-c", _PREPARE, str(tmp_path)]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert (tmp_path / "log").read_text() == "read "
    assert not (tmp_path / ".prepared.killed").exists()
