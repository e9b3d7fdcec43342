"""Export: the folded model as plain files that load with transformers and nothing else."""

import shutil
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from conf.errors import UserError
from stages.cache import draft_name, is_free
from stages.contract import Hardware, ModelRef
from stages.fold import load_folded
from stages.models import original_tokenizer


def export(ref: ModelRef, hardware: Hardware, out: Path) -> Path:
    """Write a model, adapters folded, with tokenizer, chat template and end tokens.

    Args:
        ref: The model.
        hardware: Where to fold it.
        out: The directory to write; absent or empty. It appears only when it is complete.

    Raises:
        UserError: The directory is not empty, or something is in its place.
        FoldError: The adapters and the base do not make a model that can be trusted.
    """
    check_out(out)
    model, tokenizer = exported(ref, hardware)
    draft = draft_name(out.absolute())
    try:
        draft.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"--out: cannot write {out} ({error.strerror})") from error
    try:
        model.config._name_or_path = ref.config.id
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        for file in draft.glob("*.safetensors"):  # Written for their owner only, unlike all others.
            shutil.copymode(draft / "config.json", file)
        draft.replace(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return out


def check_out(out: Path) -> None:
    """See that a directory to write is absent or empty.

    Raises:
        UserError: It is neither.
    """
    if not is_free(out):
        raise UserError(f"--out: {out} is there already and not an empty directory")


def exported(ref: ModelRef, hardware: Hardware) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """What `export` writes, for whoever writes it in another way: the folded model and its tokenizer.

    Raises:
        FoldError: The adapters and the base do not make a model that can be trusted.
    """
    return load_folded(ref, hardware).model, original_tokenizer(ref)
