"""Text files that a user gives: UTF-8, with or without a byte order mark, and a clear word about everything else."""

import codecs
from pathlib import Path

from conf.errors import UserError


def read_text(path: Path, name: str) -> str:
    """The text of a file.

    Args:
        path: The file.
        name: What to call it in messages.

    Raises:
        UserError: It cannot be read, or is not UTF-8; names the line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror or error} (looked for {path.absolute()})") from None
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{name}: the file is UTF-16; save it as UTF-8")
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise UserError(f"{name}, line {line}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8") from None
