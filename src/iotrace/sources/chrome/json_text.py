"""Text that is nearly JSON: bytes that are no UTF-8, control characters, numbers that JSON does not know."""

from __future__ import annotations

import re

# Raw control characters are no JSON, and real traces hold them: Perfetto takes them, msgspec does not.
CONTROLS = bytes([0x20] * 32) + bytes(range(32, 256))

_SHOWN = {0xDC00 + byte: f"\\x{byte:02x}" for byte in range(0x80, 0x100)}
_ESCAPED = {surrogate: "\\" + text for surrogate, text in _SHOWN.items()}
_SURROGATES = re.compile("[\udc80-\udcff]")
# A string, or a word that some writers put for a number: torch writes nan and N/A for counters.
_STRING_OR_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|-?\b(?:nan|inf|N/A)(?![\w/])', re.DOTALL)
_WORD = re.compile(r"[:,\[\s]-?(?:nan|inf|N/A)\b")


def decode(data: bytes) -> str:
    r"""Decode JSON; a byte that is no UTF-8 becomes ``\xNN`` in the string that holds it."""
    if data.isascii():
        return data.decode("ascii")
    return data.decode(errors="surrogateescape").translate(_ESCAPED)


def count_invalid(data: bytes) -> int:
    """Count the bytes that are no UTF-8."""
    if data.isascii():
        return 0
    return len(_SURROGATES.findall(data.decode(errors="surrogateescape")))


def show(text: str) -> str:
    r"""Return a decoded string without halves of UTF-16 pairs; bytes that are no UTF-8 become ``\xNN``."""
    if text.isascii():
        return text
    return text.translate(_SHOWN).encode(errors="replace").decode()


def quote_words(text: str) -> str:
    """Put ``nan``, ``inf`` and ``N/A`` in quotes where they take the place of a number."""
    if not _WORD.search(text):
        return text
    return _STRING_OR_WORD.sub(lambda match: match[0] if match[0][0] == '"' else f'"{match[0]}"', text)
