"""JSON that is none: control characters in strings, numbers that are none, bytes that are no UTF-8."""

from __future__ import annotations

import re
from typing import Any

# A string, or a number that JSON does not know (torch writes nan and N/A for some counters).
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|nan|Infinity|inf|N/A)(?![\w/])', re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_NO_UTF8 = {0xDC00 + byte: f"\\\\x{byte:02x}" for byte in range(0x80, 0x100)}
_ESCAPED_TEXT = {mark: text.replace("\\\\", "\\") for mark, text in _NO_UTF8.items()}


def repair(data: bytes) -> tuple[bytes, int]:
    """`data` with strings and numbers made valid JSON, and how many were not."""
    repaired = 0

    def mend(match: re.Match[bytes]) -> bytes:
        nonlocal repaired
        token = match.group()
        if not token.startswith(b'"'):
            repaired += 1
            return b"null"
        if _CONTROL.search(token):
            repaired += 1
            return _CONTROL.sub(lambda found: b"\\u%04x" % found.group()[0], token)
        return token

    data = _TOKEN.sub(mend, data)
    try:
        data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="surrogateescape")
        repaired += sum(text.count(chr(mark)) for mark in _NO_UTF8)
        data = text.translate(_NO_UTF8).encode()
    return data, repaired


def escape(value: Any) -> Any:
    """Bytes that are no UTF-8 become \\xNN in every string of `value`."""
    if isinstance(value, str):
        return value if value.isascii() else value.translate(_ESCAPED_TEXT)
    if isinstance(value, dict):
        return {escape(key): escape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escape(item) for item in value]
    return value
