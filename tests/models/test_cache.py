"""What is made once is made once, whole, and readable like any other file."""

import subprocess
import sys
from pathlib import Path

import pytest

from stages import tiny
from stages.cache import cache_dir, cached_sha256, file_sha256, make_once, write_atomically

_MAKE = """
import sys, time
from pathlib import Path
from stages.cache import cache_dir, make_once
def make(target):
    with open(sys.argv[1], "a") as file: file.write("made ")
    time.sleep(0.5)
    (target / "whole").touch()
assert (make_once(cache_dir() / "thing", make) / "whole").exists()
"""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RATCHET_CACHE_DIR", str(tmp_path / "cache"))


def test_the_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("RATCHET_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "ratchet"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "ratchet"


def test_three_processes_make_it_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _MAKE, str(tmp_path / "log")]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "made "


def test_a_failure_leaves_nothing_and_is_tried_again() -> None:
    def fail(target: Path) -> None:
        (target / "half").touch()
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        make_once(cache_dir() / "thing", fail)
    assert [path.name for path in cache_dir().iterdir() if path.is_dir()] == []
    assert list(make_once(cache_dir() / "thing", lambda target: (target / "whole").touch()).iterdir())


def test_digests_follow_the_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in ("one", "two"):
        write_atomically(path, text)
        assert cached_sha256(path) == cached_sha256(path) == file_sha256(path)
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_tiny_model_is_made_alike_every_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = {path.name: path.read_bytes() for path in tiny.directory().iterdir()}
    monkeypatch.setenv("RATCHET_CACHE_DIR", str(tmp_path / "other"))
    assert first == {path.name: path.read_bytes() for path in tiny.directory().iterdir()}
