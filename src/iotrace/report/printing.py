"""All that iotrace prints passes here: the names in what it reads are other people's, and steer no terminal.

A console (`iotrace.report.layout`) prints tables and colours. `echo` prints lines where importing rich would
take longer than the command.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Container, Sequence
from textwrap import wrap
from typing import Any

# Control characters of ASCII and Latin-1 (ESC, CSI), and marks that reverse a line or hide in it. Halves of
# UTF-16 pairs stand for bytes that are no UTF-8.
_STEERING = (
    "\x00-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff"
)
_IN_A_LINE = re.compile(f"[{_STEERING}]")
_IN_LINES = re.compile(f"(?!\n)[{_STEERING}]")
_IN_ASCII = {"±": "+-", "≥": ">=", "≤": "<=", "→": ">", "µ": "u", "·": "|"}
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    long = f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"
    return _SHORT.get(found[0]) or (f"\\x{code:02x}" if code < 0x100 else long)


def visible(text: str, lines: bool = False) -> str:
    r"""Return `text` with what would steer a terminal written out, as ``\x1b``; with `lines` ``\n`` stays."""
    return (_IN_LINES if lines else _IN_A_LINE).sub(_escape, text)


def in_other_words(error: UnicodeError) -> tuple[str, int]:
    """Write what an encoding does not have in ASCII, "?" for the rest: an error handler of `codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(each, "?") for each in missing), error.end


def visible_json(document: bytes) -> bytes:
    r"""Escape in JSON what JSON may hold as it is and a terminal obeys; it stands for the same values."""
    if document.isascii() and b"\x7f" not in document:
        return document
    import json

    text = document.decode(errors="surrogateescape")
    return _IN_LINES.sub(lambda found: json.dumps(found[0])[1:-1], text).replace("\x7f", "\\u007f").encode()


def encode_json(document: Any) -> bytes:
    """Return `document` as JSON; the name of a file may be any bytes, and JSON is UTF-8."""
    import msgspec

    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        import json

        return json.dumps(msgspec.to_builtins(document), ensure_ascii=False).encode(errors="replace")


def aligned(rows: Sequence[Sequence[str]], texts: Container[int] = (0,)) -> list[str]:
    """Lay rows out below each other: columns of `texts` to the left, of figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column in texts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def aligned_within(
    width: int, least: int, cut: Callable[[str, int], str], rows: Sequence[Sequence[str]]
) -> list[str]:
    """Lay rows out in `width` columns: `cut` shortens names, of `least` columns, to what figures leave."""
    _, *figures = zip(*rows, strict=True)
    room = max(least, width - sum(2 + max(map(len, column)) for column in figures))
    return aligned([(cut(name, room).ljust(least), *others) for name, *others in rows])


def echo_beside(label: str, text: str, label_width: int, width: int) -> None:
    """Print a label, and the text beside it in as many lines of `width` columns as it takes."""
    room = max(20, width - label_width)
    # What may be typed is not broken at its hyphens.
    for piece in wrap(visible(text), room, break_on_hyphens=False) or [""]:
        echo(f"{label:{label_width}}{piece}".rstrip())
        label = ""


def echo(*lines: str, err: bool = False) -> None:
    """Print `lines` to standard output, or to standard error with `err`."""
    stream = sys.stderr if err else sys.stdout
    if stream is not None:
        print(*map(visible, lines), sep="\n", file=stream, flush=True)
