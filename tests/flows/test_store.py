"""The store: an entry is only as good as its files, and one process at a time makes it."""

import multiprocessing
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from conf.errors import UserError
from conf.schema import ModelConfig
from flows.store import Entry, Store
from stages.contract import Adapter, ModelRef, StageResult


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path)
    made.prepare()
    return made


FILES = [
    "adapter/adapter_config.json",
    "adapter/adapter_model.safetensors",
    "adapter/lineage.json",
    "config.yaml",
    "inputs.json",
    "progress.jsonl",
    "receipt.json",
    "rewards/mine/reward.py",
    "samples.jsonl",
]


def finished(store: Store, fingerprint: str = "abc") -> Entry:
    """An entry with one adapter, one artifact, everything else a stage may leave, and a result."""
    entry = store.entry("sft", fingerprint)
    for name in FILES:
        (entry.path / name).parent.mkdir(parents=True, exist_ok=True)
        (entry.path / name).write_text('{"step": 1}\n')
    adapter = Adapter(path=entry.path / "adapter", sha256="f00")
    model = ModelRef(config=ModelConfig(id="tiny:random"), sha256="ba5e", adapters=(adapter,))
    result = StageResult(
        model=model, metrics={"loss": 0.5}, artifacts={"samples": entry.path / "samples.jsonl"}, receipt={"ok": 1}
    )
    entry.write_result(result, 1.0)
    return entry


def test_a_result_comes_back_as_it_was(store):
    entry = finished(store)
    result = entry.result()
    assert result is not None
    assert result.metrics == {"loss": 0.5} and result.receipt == {"ok": 1} and result.verdict is None
    assert result.model.adapters == (Adapter(path=entry.path / "adapter", sha256="f00"),)
    assert result.artifacts == {"samples": entry.path / "samples.jsonl"}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["delete", "truncate", "flip"])
def test_a_damaged_entry_does_not_count(store, name, damage):
    entry = finished(store)
    assert entry.result() is not None and entry.damage() is None
    path = entry.path / name
    content = path.read_bytes()
    if damage == "delete":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if damage == "truncate" else bytes([content[0] ^ 1]) + content[1:])
    assert entry.result() is None
    assert entry.damage() == f"{name} is {'missing' if damage == 'delete' else 'damaged'}"


def test_no_flipped_bit_of_a_result_goes_unnoticed(store):
    entry = finished(store)
    path, before = entry.path / "result.json", entry.result()
    content = path.read_bytes()
    for index in range(0, len(content), 7):
        for bit in (0, 5):
            path.write_bytes(content[:index] + bytes([content[index] ^ 1 << bit]) + content[index + 1 :])
            assert entry.result() in (None, before)  # a letter of `1e-05` may be written either way
            assert entry.result() or entry.damage() == "result.json is damaged"


def test_what_may_change_after_the_end_does_not_count(store):
    entry = finished(store)
    for name in ("tracking.json", "log.txt", "later.json"):
        (entry.path / name).write_text("{}")
    assert entry.result() is not None


def test_half_a_result_does_not_count(store):
    entry = finished(store)
    text = (entry.path / "result.json").read_text()
    (entry.path / "result.json").write_text(text[: len(text) // 2])
    assert entry.result() is None


def test_only_finished_entries_are_found(store):
    finished(store, "abc1")
    finished(store, "abd2")
    store.entry("sft", "abe3").path.mkdir()
    assert [entry.id for entry in store.find("sft-ab")] == ["sft-abc1", "sft-abd2"]


@pytest.mark.parametrize("prefix", ["", "*", "sft-*", "/", "../store/sft"])
def test_a_prefix_is_taken_literally(store, prefix):
    finished(store, "abc1")
    assert store.find(prefix) == []


@pytest.mark.parametrize("text", ["[]", "{}", '{"files": 3}', '{"files": {}, "model": {"config": {"nope": 1}}}'])
def test_a_result_of_another_shape_does_not_count(store, text):
    entry = finished(store)
    (entry.path / "result.json").write_text(text)
    assert entry.result() is None


def test_a_row_that_is_still_being_written_is_left_out(store):
    entry = store.entry("sft", "abc")
    assert entry.progress() == []
    entry.path.mkdir()
    (entry.path / "progress.jsonl").write_text('{"step": 1}\n{"st')
    assert entry.progress() == [{"step": 1}]


@pytest.mark.parametrize("line", [b'{"st\n', b"\xff\n", b"\n"])
def test_a_damaged_row_is_named(store, line):
    entry = finished(store)
    (entry.path / "progress.jsonl").write_bytes(b'{"step": 1}\n' + line)
    with pytest.raises(UserError, match=r"progress.jsonl, line 2: is damaged"):
        entry.progress()
    (entry.path / "result.json").unlink()
    assert entry.damage() == "progress.jsonl is damaged", "an unfinished stage cannot go on from there"


def test_a_file_that_cannot_be_read_is_not_taken_for_damaged(store, monkeypatch):
    entry = finished(store)

    def fail(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("flows.store.file_sha256", fail)
    assert entry.result() is None
    with pytest.raises(PermissionError):
        entry.damage()


@pytest.mark.parametrize("content", [b"99\n", b"\xff", b""])
def test_another_format_is_refused(store, content):
    (store.root / "FORMAT").write_bytes(content)
    with pytest.raises(UserError, match="another version of Ratchet"):
        store.prepare()


def _hold(runs_dir: Path, held: multiprocessing.Event, release: multiprocessing.Event) -> None:
    store = Store(runs_dir)
    with store.locked(store.entry("sft", "abc"), "the first (pid 1 on there)", lambda holder: None):
        held.set()
        release.wait(300)


@pytest.fixture
def other(store: Store) -> Iterator[tuple[BaseProcess, Event]]:
    """A process that holds an entry, until it is told to let go."""
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(store.root.parent, held, release))
    process.start()
    assert held.wait(60)
    yield process, release
    process.kill()
    process.join()


def test_a_second_process_waits_and_is_told_for_whom(store, other):
    process, release = other
    told: list[str] = []

    def on_wait(holder: str) -> None:
        told.append(holder)
        release.set()

    with store.locked(store.entry("sft", "abc"), "the second", on_wait):
        assert told[0] == "the first (pid 1 on there)"
    process.join(30)
    assert process.exitcode == 0
    assert [path.name for path in store.root.glob(".*.holder")] == []


def test_who_has_only_just_got_an_entry_is_named_at_the_next_look(store, other, monkeypatch):
    _, release = other
    notes, told = iter([None, "the first"]), list[str]()

    def on_wait(holder: str) -> None:
        told.append(holder)
        if len(told) == 2:
            release.set()

    monkeypatch.setattr("flows.store._read_note", lambda _: next(notes, None))
    with store.locked(store.entry("sft", "abc"), "the second", on_wait):
        assert told == ["the first", "another process"]


def test_the_entry_of_a_process_that_died_is_free_at_once(store, other):
    process, _ = other
    told: list[str] = []

    def on_wait(holder: str) -> None:
        told.append(holder)
        process.kill()
        process.join()

    with store.locked(store.entry("sft", "abc"), "the second", on_wait):
        assert told == ["the first (pid 1 on there)"]  # and at the next look it was free


def test_a_wait_can_be_given_up(store, other):
    def give_up(holder: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), store.locked(store.entry("sft", "abc"), "the second", give_up):
        raise AssertionError("it is held")
