"""Which rows are held out: decided by the prompt alone, so that every stage and every run agrees.

A hash with one fixed salt puts each prompt at a fixed place in [0, 1); those below `held_out` are held out, and
another bit of the same hash says whether for `select` or for `gate`. Hence duplicates never straddle the split, added
rows move none, a larger `held_out` keeps what a smaller one held out, and the seed of a run plays no part: a model
trained under one seed is never judged on rows it saw under another.
"""

import hashlib
import unicodedata

from conf.schema import Split
from stages.rows import Row

_SALT = "ratchet split 1"


def split_of(row: Row, held_out: float) -> Split:
    """The part a row belongs to.

    Args:
        row: The prepared row.
        held_out: Share of the prompts that is not trained on, between 0 and 1.
    """
    digest = hashlib.sha256(f"{_SALT}\n{normalised_prompt(row)}".encode()).digest()
    if int.from_bytes(digest[:8], "big") / 2**64 >= held_out:
        return Split.train
    return Split.select if digest[8] % 2 else Split.gate


def normalised_prompt(row: Row) -> str:
    """What makes two prompts the same: NFKC, case folded, white space collapsed, without the system message."""
    if row.messages is None:
        text = row.prompt or ""
    else:
        text = "\n".join(message["content"] for message in row.messages if message["role"] != "system")
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
