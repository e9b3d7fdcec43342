"""Export: what it writes loads with transformers alone and answers the same."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from conf.errors import UserError
from stages.adapters import FoldError
from stages.chat import prompt_ids
from stages.contract import Hardware, ModelRef
from stages.export import export
from stages.fold import load_folded
from stages.models import load_tokenizer
from stages.rows import Row

_LOAD = """
import sys
from pathlib import Path
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
conversation = [{"role": "user", "content": "What is 41 + 28?"}]
options = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": False}
for directory in sys.argv[1:]:
    ids = AutoTokenizer.from_pretrained(directory).apply_chat_template(conversation, **options)
    model = AutoModelForCausalLM.from_pretrained(directory)
    save_file({"ids": ids, "logits": model(ids).logits.detach()}, directory + ".result")
    print(model.generation_config.eos_token_id, model.config.dtype)
assert not [name for name in sys.modules if name.split(".")[0] in ("stages", "peft")]
"""


def test_a_fresh_process_gets_the_same_logits(
    tiny: ModelRef, hardware: Hardware, make_adapter: Any, tmp_path: Path
) -> None:
    refs = {}
    for dtype in ("float32", "bfloat16"):
        start = replace(tiny, dtype=dtype)
        refs[dtype] = start.with_adapter(make_adapter(start, f"adapter-{dtype}"))
        export(refs[dtype], hardware, tmp_path / "out" / dtype)
    (tmp_path / "load.py").write_text(_LOAD)
    command = [sys.executable, "load.py", *(str(tmp_path / "out" / dtype) for dtype in refs)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert printed == "[2] torch.float32\n[2] torch.bfloat16\n"
    expected = prompt_ids(load_tokenizer(tiny), tiny.config, Row(prompt="What is 41 + 28?"))
    for dtype, ref in refs.items():
        found = load_file(tmp_path / "out" / f"{dtype}.result")
        assert found["ids"].tolist() == [expected]
        with torch.no_grad():
            logits = load_folded(ref, hardware).model(found["ids"]).logits
        torch.testing.assert_close(found["logits"], logits, rtol=0, atol=1e-5 if dtype == "float32" else 1e-2)


def test_all_files_are_readable_alike(tiny: ModelRef, hardware: Hardware, tmp_path: Path) -> None:
    out = export(tiny, hardware, tmp_path / "model")
    (tmp_path / "plain").touch()
    assert {path.stat().st_mode for path in out.iterdir()} == {(tmp_path / "plain").stat().st_mode}


def test_a_directory_with_something_in_it_is_refused(tiny: ModelRef, hardware: Hardware, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for out in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(UserError, match="is there already and not an empty directory"):
            export(tiny, hardware, out)
    with pytest.raises(UserError, match=r"cannot write .*Not a directory"):
        export(tiny, hardware, tmp_path / "notes.txt" / "model")
    (tmp_path / "empty").mkdir()
    assert (export(tiny, hardware, tmp_path / "empty") / "model.safetensors").is_file()


def test_a_failed_export_leaves_nothing(tiny: ModelRef, hardware: Hardware, make_adapter: Any, tmp_path: Path) -> None:
    adapter = make_adapter(tiny)
    (adapter.path / "lineage.json").unlink()
    with pytest.raises(FoldError):
        export(tiny.with_adapter(adapter), hardware, tmp_path / "out" / "model")
    assert not (tmp_path / "out").exists()
