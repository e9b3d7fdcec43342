"""Hub datasets, read from a server on this machine that speaks the hub's protocol, in processes of their own."""

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMIT = "a" * 40
ROWS = b'{"q": "one", "a": 1}\n{"q": "two", "extra": {"x": null, "y": 2}}\n'
FILE = {"type": "file", "path": "train.jsonl", "size": len(ROWS), "oid": "b" * 40}
ANSWERS = {
    "/api/datasets/acme/qa": {"id": "acme/qa", "sha": COMMIT},
    f"/api/datasets/acme/qa/revision/{COMMIT}": {"id": "acme/qa", "sha": COMMIT},
    f"/api/datasets/acme/qa/tree/{COMMIT}": [FILE],
}


class Hub(http.server.BaseHTTPRequestHandler):
    """One dataset, `acme/qa`, with one file."""

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path in ANSWERS:
            self.answer(200, json.dumps(ANSWERS[path]).encode())
        elif path.endswith("/train.jsonl"):
            self.answer(200, ROWS, ETag='"rows"')
        else:
            missing = "Repo" if "acme/qa" not in path else "Revision" if "/revision/" in path else "Entry"
            self.answer(404, **{"X-Error-Code": f"{missing}NotFound"})

    do_HEAD = do_GET

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "X-Repo-Commit": COMMIT, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def ask(home: Path, call: str, settings: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = (
        "from pathlib import Path; from conf.errors import UnreachableError, UserError\n"
        "from conf.schema import DataConfig\n"
        "from stages.data import data_identity; from stages.sources import read_source\n"
        f"try: print({call}(DataConfig({settings}), Path('.')))\n"
        "except UserError as error: print(error); raise SystemExit(1 if isinstance(error, UnreachableError) else 2)"
    )
    variables = {**os.environ, "HF_HOME": str(home), "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", **environment}
    return subprocess.run([sys.executable, "-c", code], env=variables, cwd=ROOT, capture_output=True, text=True)


def test_rows_come_at_a_commit_and_offline_from_no_other(tmp_path: Path, endpoint: str) -> None:
    rows = "{'q': 'two', 'extra': {'y': 2}}"
    first = ask(tmp_path, "read_source", "source='acme/qa'", HF_ENDPOINT=endpoint)
    assert rows in first.stdout and "'a': 1" in first.stdout, first
    again = ask(tmp_path, "read_source", f"source='acme/qa', revision='{COMMIT}'", HF_HUB_OFFLINE="1")
    assert rows in again.stdout, again
    other = ask(tmp_path, "read_source", f"source='acme/qa', revision='{'c' * 40}'", HF_HUB_OFFLINE="1")
    assert "was not downloaded" in other.stdout and "two" not in other.stdout, other


def test_identity_is_that_of_the_commit(tmp_path: Path, endpoint: str) -> None:
    branch = ask(tmp_path, "data_identity", "source='acme/qa'", HF_ENDPOINT=endpoint).stdout
    commit = ask(tmp_path, "data_identity", f"source='acme/qa', revision='{COMMIT}'").stdout
    other = ask(tmp_path, "data_identity", f"source='acme/qa', revision='{'c' * 40}'").stdout
    assert branch == commit != other


ERRORS = [
    ("source='acme/none'", "acme/none: is neither a file here nor a dataset on the hub"),
    ("source='acme/qa', revision='v9'", "acme/qa: the hub dataset has no revision 'v9'"),
    ("source='acme/qa', split='test'", 'acme/qa: the hub dataset cannot be loaded: Unknown split "test"'),
]


@pytest.mark.parametrize(("settings", "message"), ERRORS)
def test_what_the_hub_does_not_have(tmp_path: Path, endpoint: str, settings: str, message: str) -> None:
    done = ask(tmp_path, "read_source", settings, HF_ENDPOINT=endpoint)
    assert done.stdout.startswith(message) and done.stdout.count("\n") == 1, done
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("call", "revision"), [("data_identity", "main"), ("read_source", "main"), ("read_source", COMMIT)]
)
def test_a_hub_that_cannot_be_reached_is_one_clear_line(tmp_path: Path, call: str, revision: str) -> None:
    started = time.monotonic()
    done = ask(tmp_path, call, f"source='acme/qa', revision='{revision}'", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.stdout.startswith("acme/qa: is no file here, and the hub cannot be reached"), done
    assert done.stdout.count("\n") == 1 and done.stderr == "" and done.returncode == 1  # an outage, it may pass
    assert time.monotonic() - started < 60  # the hub's library by itself goes on trying
