"""Fixtures for the stages: rows of one-digit sums, and a context per stage."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from stages.contract import Hardware, ModelRef, StageContext
from stages.hardware import prepare
from stages.models import load_tokenizer
from stages.rows import Row, write_rows


@pytest.fixture(autouse=True)
def seeded(hardware: Hardware) -> None:
    """Every test starts from the same random state, with one thread."""
    prepare(hardware, 0)


@pytest.fixture(scope="session")
def tokenizer(tiny: ModelRef) -> Any:
    return load_tokenizer(tiny)


@pytest.fixture(scope="session")
def rows() -> list[Row]:
    return [
        Row(prompt=f"{a}+{b}", system="Add." if a % 2 else None, response=str(a + b), reference=a + b, row={"a": a})
        for a in range(8)
        for b in range(5)
    ]


@pytest.fixture(scope="session")
def data(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    splits = {"train": rows[:30], "select": rows[30:35], "gate": rows[35:]}
    return {name: write_rows(folder / f"{name}.jsonl", split) for name, split in splits.items()}


class Contexts:
    """Makes contexts in directories of their own, and keeps the metric rows they were given."""

    def __init__(self, folder: Path, tiny: ModelRef, data: Mapping[str, Path], hardware: Hardware) -> None:
        self.folder = folder
        self.defaults = {"models": {"start": tiny}, "seed": 0, "hardware": hardware, "data": data}
        self.logged: list[Mapping[str, float]] = []
        self.progress: list[tuple[str, int, int]] = []

    def __call__(self, name: str, **changes: Any) -> StageContext:
        out_dir = self.folder / name
        out_dir.mkdir()
        callbacks = {
            "log_metrics": self.logged.append,
            "progress": lambda what, done, total: self.progress.append((what, done, total)),
        }
        return StageContext(out_dir=out_dir, **{**self.defaults, **callbacks, **changes})


@pytest.fixture
def context(tmp_path: Path, tiny: ModelRef, data: Mapping[str, Path], hardware: Hardware) -> Contexts:
    return Contexts(tmp_path, tiny, data, hardware)


MakeContext = Callable[..., StageContext]
