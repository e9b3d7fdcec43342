"""Which model exactly: hashes that follow the content, and clear answers where there is no model."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conf.errors import UnreachableError, UserError
from conf.loader import load
from conf.schema import ModelConfig
from stages import hub
from stages.identity import resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_importing_and_resolving_loads_no_torch() -> None:
    code = (
        "import sys; from conf.schema import *; from stages.identity import *; from stages.hardware import *; "
        "resolve_model(ModelConfig(id='tiny:random'), 'float32'); resolve_hardware(HardwareConfig()); "
        "print([name for name in ('torch', 'transformers', 'huggingface_hub') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_directory_is_its_content(copy_of_tiny: Any, local: Any) -> None:
    one, other = copy_of_tiny("one"), copy_of_tiny("other")
    before = local(one).sha256
    assert local(other).sha256 == before
    for name in ("tokenizer.json", "config.json", "model.safetensors"):
        seen = local(other).sha256
        content = (other / name).read_bytes()
        (other / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if "model" in name else content + b" ")
        assert local(other).sha256 != seen
    (one / "README.md").write_text("notes")
    assert local(one).sha256 == before


@pytest.mark.parametrize(
    ("remove", "add", "message"),
    [
        (["config.json"], [], "has no config.json"),
        (["model.safetensors"], [], "has no weights"),
        (["model.safetensors"], ["pytorch_model.bin"], "only pickled weights.* convert them: .*save_pretrained"),
        (["tokenizer.json", "tokenizer_config.json"], [], "has no tokenizer"),
    ],
)
def test_directories_that_are_no_models(
    copy_of_tiny: Any, local: Any, remove: list[str], add: list[str], message: str
) -> None:
    directory = copy_of_tiny()
    for name in remove:
        (directory / name).unlink()
    for name in add:
        (directory / name).touch()
    with pytest.raises(UserError, match=message):
        local(directory)


@pytest.mark.parametrize("model_id", ["./no-such-model", "/no/such/model", "embedded:other", "tiny:other"])
def test_models_that_are_not_there(model_id: str) -> None:
    with pytest.raises(UserError, match="there is no"):
        resolve_model(ModelConfig(id=model_id), "float32")


class _Hub(BaseHTTPRequestHandler):
    """Answers like the hub for a few models."""

    def do_GET(self) -> None:
        name = self.path.removeprefix("/api/models/").split("?")[0]
        files = {"some/good": ["model.safetensors", "config.json"], "some/pickled": ["pytorch_model.bin"]}
        codes = {"some/gated": (403, "GatedRepo"), "some/good/revision/nowhere": (404, "RevisionNotFound")}
        name = name.removesuffix(f"/revision/{COMMIT}")
        status, code = codes.get(name, (200, "") if name in files else (404, "RepoNotFound"))
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.end_headers()
        siblings = [{"rfilename": file} for file in files.get(name, [])]
        self.wfile.write(json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    yield
    server.shutdown()
    server.server_close()


def test_a_hub_model_is_its_commit(fake_hub: None) -> None:
    ref = resolve_model(ModelConfig(id="some/good"), "float32")
    assert ref.revision == COMMIT
    assert ref.sha256 == resolve_model(ModelConfig(id="some/good", revision=COMMIT), "float32").sha256


@pytest.mark.parametrize(
    ("model_id", "revision", "message"),
    [
        ("some/pickled", None, "some/pickled has no safetensors weights"),
        ("some/gated", None, "some/gated is gated: .*HF_TOKEN"),
        ("some/absent", None, "some/absent is neither on the hub"),
        ("some/good", "nowhere", "some/good has no revision 'nowhere'"),
        ("not a model", None, "not a model is neither a hub id"),
    ],
)
def test_what_the_hub_refuses(fake_hub: None, model_id: str, revision: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve_model(ModelConfig(id=model_id, revision=revision), "float32")


def test_a_hub_that_cannot_be_reached_is_one_line_with_an_offer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UnreachableError) as caught:
        resolve_model(ModelConfig(id="Qwen/Qwen3-0.6B"), "float32")
    assert str(caught.value) == (
        "model.id: Qwen/Qwen3-0.6B cannot be fetched, the model hub cannot be reached; "
        "or use the embedded model: model=smollm2-135m"
    )


def test_offline_an_earlier_download_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, copy_of_tiny: Any
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    repo = tmp_path / "hub" / "models--some--good"
    (repo / "refs").mkdir(parents=True)
    (repo / "snapshots").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    copy_of_tiny().rename(repo / "snapshots" / COMMIT)
    config = ModelConfig(id="some/good")
    commit, _ = hub.resolve(config)
    assert commit == COMMIT
    assert (hub.directory(config, commit) / "config.json").is_file()


def test_every_preset_is_a_model_section() -> None:
    import yaml

    presets = sorted(Path(hub.__file__).parents[1].glob("conf/model/*.yaml"))
    assert len(presets) >= 12
    for path in presets:
        load(ModelConfig, yaml.safe_load(path.read_text()), path.stem)
