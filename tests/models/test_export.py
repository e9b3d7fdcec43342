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
import sys, json, torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
conversation = [{"role": "user", "content": "What is 41 + 28?"}]
ids = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_tensors="pt", return_dict=False)
save_file({"ids": ids, "logits": model(ids).logits.detach()}, sys.argv[2])
assert not [name for name in sys.modules if name.split(".")[0] in ("stages", "peft")]
print(model.generation_config.eos_token_id, model.config.dtype)
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_fresh_process_gets_the_same_logits(
    tiny: ModelRef, hardware: Hardware, make_adapter: Any, tmp_path: Path, dtype: str
) -> None:
    start = replace(tiny, dtype=dtype)
    ref = start.with_adapter(make_adapter(start))
    export(ref, hardware, tmp_path / "out" / "model")
    script, result = tmp_path / "load.py", tmp_path / "result.safetensors"
    script.write_text(_LOAD)
    command = [sys.executable, str(script), str(tmp_path / "out" / "model"), str(result)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert printed == f"[2] torch.{dtype}\n"
    found = load_file(result)
    expected = prompt_ids(load_tokenizer(ref), ref.config, Row(prompt="What is 41 + 28?"))
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
