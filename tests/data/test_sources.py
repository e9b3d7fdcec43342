"""Every format keeps its types, and every mistake in a source is answered with its file, line and column."""

import datetime
import decimal
import json
import sys
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest

from conf.errors import UserError
from conf.schema import DataConfig
from stages.sources import read_source

TYPED = {"q": 'ä, "x"\n2', "n": 7, "f": 0.5, "b": True, "null": None, "list": [1, "a"], "deep": {"k": [{"x": 1}]}}


def read(source: str, base: Path, **settings: Any) -> list[dict[str, Any]]:
    return [record.values for record in read_source(DataConfig(source=source, **settings), base)]


def write(base: Path, name: str, content: str | bytes) -> str:
    (base / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return name


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_json_values_keep_their_types_and_absent_columns_stay_absent(tmp_path: Path, suffix: str) -> None:
    rows = [TYPED, {"q": "\u2028 is no line break"}, {"n": "7"}]
    text = json.dumps(rows) if suffix == "json" else "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    got = read(write(tmp_path, f"rows.{suffix}", text), tmp_path)
    assert got == rows
    assert [[type(value) for value in row.values()] for row in got] == [
        [type(value) for value in row.values()] for row in rows
    ]


@pytest.mark.parametrize(("suffix", "mark"), [("csv", ","), ("tsv", "\t")])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_delimited_cells_are_text(tmp_path: Path, suffix: str, mark: str, newline: str, bom: bytes) -> None:
    lines = [["q", "n"], ['"a ""b""\nc' + mark + '"', "007"], ["", "1.50"]]
    content = bom + newline.join(mark.join(line) for line in lines).encode()
    got = read(write(tmp_path, f"rows.{suffix}", content), tmp_path)
    assert got == [{"q": 'a "b"\nc' + mark, "n": "007"}, {"q": "", "n": "1.50"}]


def test_parquet_round_trip_with_nulls_as_absent(tmp_path: Path) -> None:
    rows = [
        {"q": "a", "n": 1, "f": 0.5, "b": True, "list": [1, 2], "call": {"tool": "x", "id": "7"}},
        {"q": "b", "n": 2, "call": {"tool": "y"}},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    got = read("rows.parquet", tmp_path)
    assert got == rows
    assert type(got[0]["n"]) is int and type(got[0]["b"]) is bool


def test_values_without_a_json_form_become_plain(tmp_path: Path) -> None:
    values = {
        "day": datetime.date(2026, 3, 14),
        "price": decimal.Decimal("12.50"),
        "count": numpy.int64(3),
        "score": numpy.float32(0.5),
        "pair": (1, 2),
    }
    (tmp_path / "plain_values.py").write_text("def rows(values):\n    yield values\n")
    (got,) = read("python:plain_values.rows", tmp_path, args={"values": values})
    assert got == {"day": "2026-03-14", "price": 12.5, "count": 3, "score": 0.5, "pair": [1, 2]}
    assert json.loads(json.dumps(got)) == got


def test_function_beside_the_users_files(tmp_path: Path) -> None:
    (tmp_path / "own_rows.py").write_text("def squares(n):\n    return [{'q': str(i), 'a': i * i} for i in range(n)]\n")
    assert read("python:own_rows.squares", tmp_path, args={"n": 3})[2] == {"q": "2", "a": 4}
    assert len(read("python:own_rows.squares", tmp_path, args={"n": 100}, max_rows=5)) == 5


@pytest.mark.parametrize("there", [True, False], ids=["on the path", "not on the path"])
def test_where_python_looks_for_modules_is_as_it_was_after_a_function(tmp_path: Path, monkeypatch, there: bool) -> None:
    (tmp_path / "own_function.py").write_text("def rows():\n    return [{'q': 'a'}]\n")
    monkeypatch.setattr(sys, "path", [*([str(tmp_path)] if there else []), *sys.path])
    before = list(sys.path)
    assert read("python:own_function.rows", tmp_path) == [{"q": "a"}]
    assert sys.path == before


FILE_ERRORS = [
    ("missing", "rows.csv", None, ["rows.csv", "no such file"]),
    ("empty csv", "rows.csv", "", ["rows.csv", "empty"]),
    ("empty parquet", "rows.parquet", "", ["rows.parquet", "empty"]),
    ("white space", "rows.jsonl", " \n\n", ["rows.jsonl", "empty"]),
    ("header alone", "rows.csv", "q,a\n", ["rows.csv", "no rows"]),
    ("no rows", "rows.json", "[]", ["rows.json", "no rows"]),
    ("latin-1", "rows.csv", "q,a\nx,y\nä,y\n".encode("latin-1"), ["line 3", "0xe4", "UTF-8"]),
    ("utf-16", "rows.csv", "q,a\nx,y\n".encode("utf-16"), ["UTF-16", "UTF-8"]),
    ("duplicate columns", "rows.csv", "q,a,q\nx,y,z\n", ["line 1", "'q'"]),
    ("too many cells", "rows.csv", 'q,a\n"two\nlines",y\nx,y,z\n', ["line 4", "3 cells", "2 columns"]),
    ("too few cells", "rows.tsv", "q\ta\nx\n", ["line 2", "1 cells", "2 columns"]),
    ("open quote", "rows.csv", 'q,a\nx,y\n"x,y\n', ["line 3", "quote"]),
    ("broken line", "rows.jsonl", '{"q": 1}\n\n{"q": 2\n', ["line 3", "column 8", "one JSON object per line"]),
    ("no object", "rows.jsonl", '{"q": 1}\n[1]\n', ["line 2", "expected an object", "[1]"]),
    ("nan", "rows.jsonl", '{"q": NaN}\n', ["line 1", "NaN"]),
    ("key twice", "rows.jsonl", '{"q": 1, "q": 2}\n', ["line 1", "'q'", "twice"]),
    ("half surrogate", "rows.jsonl", '{"q": "\\ud800"}\n', ["line 1", "'q'", "Unicode"]),
    ("broken json", "rows.json", '[{"q": 1},\n{"q" 2}]', ["rows.json", "line 2, column 6"]),
    ("json object", "rows.json", '{"q": [1]}', ["rows.json", "list of objects"]),
    ("json list of text", "rows.json", '[{"q": 1}, "x"]', ["row 2", "'x'"]),
    ("no parquet", "rows.parquet", "q,a\nx,y\n", ["rows.parquet", "not a parquet file"]),
    ("other suffix", "rows.xlsx", "x", ["rows.xlsx", ".csv, .tsv, .jsonl, .json, .parquet", "hub dataset id"]),
]


@pytest.mark.parametrize(
    ("name", "content", "parts"), [row[1:] for row in FILE_ERRORS], ids=[row[0] for row in FILE_ERRORS]
)
def test_file_errors(tmp_path: Path, name: str, content: str | bytes | None, parts: list[str]) -> None:
    if content is not None:
        write(tmp_path, name, content)
    with pytest.raises(UserError) as caught:
        read(name, tmp_path)
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message


def test_directory_and_path_that_is_no_hub_id(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="folder: is a directory"):
        read("folder", tmp_path)
    with pytest.raises(UserError, match=r"\./a/b/c: does not exist"):
        read("./a/b/c", tmp_path)


FUNCTIONS = """
def rows(n): return [{'q': n}]
def text(): return 'abc'
def one(): return {'q': 1}
def numbers(): yield {'q': 1}; yield 2
def fails(): yield {'q': 1}; raise KeyError('boom')
def value(): yield {'q': 1}; yield {'q': b'x'}
constant = 1
"""

FUNCTION_ERRORS = [
    ("python:function_errors", {}, ["python:package.module.function"]),
    ("python:no_such_module.rows", {}, ["'no_such_module'"]),
    ("python:function_errors.missing", {}, ["no function 'missing'"]),
    ("python:function_errors.constant", {}, ["no function 'constant'"]),
    ("python:function_errors.rows", {}, ["args", "'n'"]),
    ("python:function_errors.rows", {"n": 1, "m": 2}, ["args", "'m'"]),
    ("python:function_errors.text", {}, ["mappings", "str"]),
    ("python:function_errors.one", {}, ["mappings", "dict"]),
    ("python:function_errors.numbers", {}, ["row 2", "expected an object"]),
    ("python:function_errors.fails", {}, ["KeyError", "boom"]),
    ("python:function_errors.value", {}, ["row 2", "'q'", "bytes"]),
]


@pytest.mark.parametrize(("source", "args", "parts"), FUNCTION_ERRORS)
def test_function_errors(tmp_path: Path, source: str, args: dict[str, Any], parts: list[str]) -> None:
    (tmp_path / "function_errors.py").write_text(FUNCTIONS)
    with pytest.raises(UserError) as caught:
        read(source, tmp_path, args=args)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
