"""Disks that are full or may not be written: nothing is lost, the message says what to do, the same command goes on."""

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import safetensors.torch
import torch

from conf.errors import DiskError, UserError
from conf.training import LoraConfig
from flows import room
from flows.cli import main
from flows.compose import compose_run
from flows.record import Record
from flows.room import adapter_size, check_room, estimate, matrices
from flows.workspace import Workspace
from stages import tiny
from stages.cache import write_atomically
from stages.disk import check_writable, disk_error, free_space, size_text

MLFLOW = (
    "(raised as a result of Query-invoked autoflush)\n(sqlite3.OperationalError) database or disk is full\n[SQL: ..."
)
FULL = "No space left on device"
ERRORS = [
    (OSError(errno.ENOSPC, FULL), "{tmp}: No space left on device ("),
    (OSError(errno.ENOSPC, FULL, "/a/from", None, "/tmp/to"), "/tmp/to: No space left on device ("),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), "{tmp}: Disk quota exceeded ("),
    (OSError(errno.EROFS, "Read-only file system", "/a/.x.0123"), "/a: Read-only file system"),
    (PermissionError(errno.EACCES, "Permission denied", "/a/b"), "/a/b: Permission denied"),
    (ValueError("Error while serializing: I/O error: No space left on device (os error 28)"), f"{{tmp}}: {FULL} ("),
    (ValueError("I/O error: Read-only file system (os error 30) at path"), "{tmp}: Read-only file system"),
    (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"), f"{{tmp}}: {FULL} ("),
    (RuntimeError("basic_ios::clear: iostream error"), f"{{tmp}}: {FULL} ("),
    (
        RuntimeError(
            "[enforce fail at inline_container.cc:747] . open file failed with strerror: Read-only file system"
        ),
        "{tmp}: Read-only file system",
    ),
    (RuntimeError(MLFLOW), f"{{tmp}}: {FULL} ("),
    (RuntimeError("(sqlite3.OperationalError) attempt to write a readonly database"), "{tmp}: Read-only file system"),
    (RuntimeError("(sqlite3.OperationalError) disk I/O error"), "{tmp}: Input/output error"),
]
"""As they were raised on a small and on a read-only file system; types that are the libraries' own play no part."""


@pytest.mark.parametrize(("error", "message"), ERRORS, ids=[str(error)[:40] for error, _ in ERRORS])
def test_what_is_raised_for_a_disk_becomes_one_message(error, message, tmp_path):
    found = disk_error(error, tmp_path)
    assert str(found).startswith(message.format(tmp=tmp_path))
    assert found.full == ("free)" in str(found))


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "x"),
        PermissionError(errno.EACCES, "Permission denied"),  # of a socket, say
        RuntimeError("No such file (os error 2)"),
        UserError("data.csv: cannot be read (Permission denied)"),
        ValueError("nothing of the kind"),
    ],
    ids=str,
)
def test_other_errors_stay_what_they_are(error, tmp_path):
    assert disk_error(error, tmp_path) is None


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size: the same failure as on a full disk, under another number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


WRITERS = {
    "torch": lambda path: torch.save({"weight": torch.zeros(10_000)}, path),
    "safetensors": lambda path: safetensors.torch.save_file({"weight": torch.zeros(10_000)}, path),
    "ours": lambda path: write_atomically(path, "x" * 10_000),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_what_the_libraries_raise_is_understood(writer, tmp_path):
    with no_file_above(4096), pytest.raises(Exception) as raised:
        WRITERS[writer](tmp_path / "file")
    found = disk_error(raised.value, tmp_path)
    assert found is not None and found.full and str(tmp_path) in str(found)


def test_a_failed_write_leaves_what_was_there_and_no_draft(tmp_path):
    path = tmp_path / "result.json"
    write_atomically(path, "as it was")
    with no_file_above(4096), pytest.raises(OSError, match="File too large"):
        write_atomically(path, "x" * 10_000)
    assert path.read_text() == "as it was"
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_that_cannot_be_written_stays_as_it_was(tmp_path):
    record = Record(compose_run(["experiment=smoke"]), tmp_path, [])
    record.update_step("sft", state="running")
    with no_file_above(512), pytest.raises(OSError, match="File too large"):
        record.end("failed")
    assert json.loads((record.folder / "pipeline.json").read_text())["state"] == "running"
    record.end("failed")
    saved = json.loads((record.folder / "pipeline.json").read_text())
    assert (saved["state"], saved["steps"]["sft"]["state"]) == ("failed", "failed")


def test_a_directory_that_may_not_be_written_is_bad_input(tmp_path):
    if os.geteuid():
        tmp_path.chmod(0o500)
    else:
        os.seteuid(65534)  # root may write everywhere
    try:
        with pytest.raises(UserError, match=r"runs_dir: cannot write to .*runs.*Permission denied.*; give a directory"):
            check_writable(tmp_path / "runs", "runs_dir")
    finally:
        if os.geteuid() == 65534:
            os.seteuid(0)
        tmp_path.chmod(0o700)


def smoke_workspace(runs_dir: Path) -> Workspace:
    """The workspace of the smoke pipeline, its data prepared."""
    workspace = Workspace(compose_run(["experiment=smoke", f"runs_dir={runs_dir}"]))
    workspace.check()
    return workspace


def test_the_estimate_covers_what_a_run_writes(smoke, tmp_path):
    written = sum(path.lstat().st_blocks * 512 for path in smoke.rglob("*"))
    workspace = smoke_workspace(tmp_path)
    assert written <= estimate(workspace, workspace.config.steps).total <= 4 * written


def test_a_model_that_ships_is_exported_and_kept(tmp_path):
    workspace = Workspace(compose_run(["experiment=ship", "model=tiny", f"runs_dir={tmp_path}"]))
    workspace.store.prepare()
    files = sum(path.stat().st_size for path in tiny.directory().iterdir() if path.is_file())
    assert estimate(workspace, ["gate"]).registered == 2 * files
    assert not estimate(workspace, ["reinforce"]).registered


def test_an_adapter_is_as_large_as_estimated(smoke):
    shapes = matrices(tiny.directory())
    for adapter in smoke.glob("store/*/adapter"):
        written = sum(path.stat().st_size for path in adapter.iterdir())
        assert written <= adapter_size(LoraConfig(), shapes) <= 1.2 * written
    attention = adapter_size(LoraConfig(r=4, target_modules=["q_proj", "v_proj"]), shapes)
    assert attention < adapter_size(LoraConfig(r=4), shapes) < adapter_size(LoraConfig(), shapes)


def test_what_is_cached_needs_no_room(smoke):
    workspace = smoke_workspace(smoke)
    nothing, all_of_it = estimate(workspace, []), estimate(workspace, workspace.config.steps)
    assert nothing.adapters == nothing.checkpoints == 0
    assert nothing.total < all_of_it.total / 3


def test_too_little_room_is_found_before_anything_runs(tmp_path, monkeypatch):
    workspace = smoke_workspace(tmp_path)
    monkeypatch.setattr(room, "free_space", lambda path: 300 * 2**10)
    with pytest.raises(
        UserError, match=r"runs_dir: .* has 300 KiB free, .* may need about 4\.\d MiB \(adapters .*; make room"
    ):
        check_room(workspace, workspace.config.steps)
    monkeypatch.setenv("RATCHET_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"RATCHET_CACHE_DIR: .* has 300 KiB free, the base model"):
        check_room(workspace, [])


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 KiB"), (300_000, "293 KiB"), (1.5 * 2**20, "1.5 MiB"), (2**40, "1024 GiB")]
)
def test_sizes_are_readable(size, text):
    assert size_text(size) == text


def test_the_space_of_a_place_that_is_not_there_yet(tmp_path):
    assert abs(free_space(tmp_path / "no" / "such") - free_space(tmp_path)) < 2**30


def test_a_full_disk_is_no_bad_input_and_has_no_traceback(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("flows.commands.runs.main", lambda _: (_ for _ in ()).throw(DiskError("x: full", full=True)))
    assert main(["runs"]) == 1
    assert capsys.readouterr().err == "ratchet: x: full\n"


def small_disk(folder: Path, pattern: str, left: int, *overrides: str) -> tuple[dict, dict[str, str]]:
    """What came of a life on a small disk (see small_disk.py), and what each command said."""
    from prefect.settings import get_current_settings

    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    tried = subprocess.run([*namespace, "mount", "-t", "tmpfs", "none", folder], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"this machine lets nobody mount a file system: {tried.stderr.strip()}")
    program = [sys.executable, Path(__file__).with_name("small_disk.py"), folder, "8", pattern, str(left)]
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "PREFECT_API_URL": str(get_current_settings().api.url)}
    arguments = ["experiment=smoke", *overrides]
    done = subprocess.run([*namespace, *program, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    said = dict(part.split("\n", 1) for part in done.stderr.split("== ")[1:])
    return json.loads(done.stdout.splitlines()[-1]), said


def check_life(outcome: dict, said: dict[str, str]) -> None:
    """Every command on the small disk ended as it should, and nothing was lost."""
    reading = dict.fromkeys(["plan", "runs", "progress", "compare"], 0)
    refused = dict.fromkeys(["no room", "little room", "read-only"], 2)
    assert outcome["codes"] == {**refused, "filling": 1, "room": 0, **reading}, said
    assert "Traceback" not in "".join(said.values())
    for name, words in {"no room": "No space left", "little room": " KiB free, this pipeline may need"}.items():
        assert said[name].startswith("ratchet: runs_dir: ") and words in said[name] and "make room" in said[name]
    last = said["filling"].splitlines()[-1]
    assert (
        last.startswith("ratchet: ")
        and "No space left on device" in last
        and "KiB free); finished steps are kept" in last
    )
    assert "the same command continues once there is room: what is left may need about" in last
    assert "ratchet: runs_dir: cannot write to" in said["read-only"] and "Read-only file system" in said["read-only"]
    before, after = outcome["found"]["filling"]["files"], outcome["found"]["room"]["files"]
    finished = {name.rsplit("/", 1)[0] for name in before if name.endswith("/result.json")}
    kept = {name: value for name, value in before.items() if name.rpartition("/adapter/")[0] in finished}
    assert kept
    assert {name: after.get(name) for name in kept} == kept
    assert not [name for name in after if "/." in name and not name.endswith(".lock")]


@pytest.mark.slow
def test_a_small_disk(tmp_path, prefect_server):
    steps = [
        "~pipeline.pairs",
        "~pipeline.preference",
        "~pipeline.reinforce",
        "sft.max_steps=1",
        "suite.arithmetic.max_rows=2",
    ]
    outcome, said = small_disk(tmp_path, "store/sft-*/result.json", 0, *steps)
    check_life(outcome, said)
    assert outcome["found"]["room"]["states"][-1] == {"sft": "cached", "evaluate": "completed"}


@pytest.mark.slow
def test_a_disk_that_fills_between_two_checkpoints(tmp_path, prefect_server):
    outcome, said = small_disk(tmp_path, "store/reinforce-*/checkpoints/step-00000001", 64, "reinforce.save_steps=1")
    check_life(outcome, said)
    assert "goes on after step" in said["room"]
    before = outcome["found"]["filling"]
    assert [name for name in before["files"] if "/checkpoints/" in name and "/step-" not in name] == []
    trained = ["reinforce_audit", "sft", "pairs", "preference", "reinforce_probe"]
    states = {**dict.fromkeys(trained, "cached"), "reinforce": "completed", "evaluate": "completed"}
    assert outcome["found"]["room"]["states"][-1] == states
    assert before["states"][-1]["reinforce"] == "failed"  # there was room to say so
