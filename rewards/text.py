"""How texts are made comparable, once for all rewards: Unicode forms, case, white space, quotes, punctuation, words."""

import re
import unicodedata

_QUOTES = ('""', "''", "``", "“”", "‘’", "„“", "«»", "‹›", "「」", "『』")  # noqa: RUF001
_WORD = re.compile(r"[^\W_]+(?:[.,:'-][^\W_]+)*")
_FINAL_PUNCTUATION = ".,;:!?。、"


def fold(text: str) -> str:
    """NFKC, casefold, white space stripped and collapsed to single spaces."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(folded.split())


def normalise(text: str) -> str:
    """`fold`, then without surrounding quotes and final punctuation, however they are nested.

    A text of nothing but punctuation keeps it: only a blank text becomes empty.
    """
    text = fold(text)
    while True:
        shorter = _unquoted(text).rstrip(_FINAL_PUNCTUATION).strip()
        if not shorter or shorter == text:
            return text
        text = shorter


def words(text: str) -> list[str]:
    """The words and numbers of a folded text, without what stands around them; `don't`, `9:30` and `e-mail` are one."""
    return _WORD.findall(fold(text).replace("’", "'"))  # noqa: RUF001


def occurs(words: str, text: str) -> bool:
    """Whether `words` stands in `text` on word boundaries: no letter or digit of a longer word at either end."""
    start = text.find(words)
    while start >= 0:
        if not _inside_word(text, start) and not _inside_word(text, start + len(words)):
            return True
        start = text.find(words, start + 1)
    return False


def _unquoted(text: str) -> str:
    if len(text) > 2 and text[0] + text[-1] in _QUOTES:
        return text[1:-1]
    return text


def _inside_word(text: str, index: int) -> bool:
    return 0 < index < len(text) and _is_word(text[index - 1]) and _is_word(text[index])


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
