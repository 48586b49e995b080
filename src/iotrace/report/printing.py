"""All that iotrace prints passes here: the names in what it reads are other people's, and steer no terminal.

A console (`iotrace.report.layout`) prints tables and colours. `echo` prints lines where importing rich would
take longer than the command.
"""

from __future__ import annotations

import re
import shlex
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
GAP = "  "  # between two columns of a table
_NARROWEST_TEXT, _READABLE_TEXT = 8, 20  # columns
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


def command(argv: list[str], width: int) -> str:
    """A command in one line of at most `width` columns: what is too long is cut in its middle."""
    text = visible(" ".join(shlex.join(argv).split()))  # a program may stand in it (``python -c``)
    # The end of a command tells runs apart, its beginning the program.
    return middle_cut(text, width, " … ")


def middle_cut(text: str, width: int, sign: str = "…") -> str:
    """Cut a long text in its middle: beginning and end tell names apart."""
    if len(text) <= width:
        return text
    kept = max(0, width - len(sign))
    return f"{text[: kept - kept // 2]}{sign}{text[len(text) - kept // 2 :]}"


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


def in_bands(
    widest: Sequence[int], texts: Container[int], width: int, names: Container[int]
) -> list[list[int]]:
    """Share out columns of these widths over tables of `width` columns, where one table would cut figures.

    Each has the columns of `names`, in the order of all.
    """
    every = range(len(widest))
    named = [at for at in every if at in names]

    def taken(shown: Sequence[int], of_text: int) -> int:
        cells = [min(widest[at], of_text) if at in texts else widest[at] for at in shown]
        return sum(cells) + len(GAP) * (len(shown) - 1)

    if taken(every, _READABLE_TEXT) <= width or len(named) == len(widest):
        return [[*every]]
    bands: list[list[int]] = [[]]
    for at in every:
        if at in names:
            continue
        if bands[-1] and taken([*named, *bands[-1], at], _READABLE_TEXT) > width:
            bands.append([])
        bands[-1].append(at)
    return [sorted([*named, *band]) for band in bands]


def laid_out(
    rows: Sequence[Sequence[str]],
    texts: Container[int],
    width: int,
    cut: Callable[[str, int], str],
    length: Callable[[str], int] = len,
) -> list[list[str]]:
    """Pad the cells of `rows` below each other: columns of `texts` stand left, figures right.

    Texts share what figures leave of `width` columns, as `length` counts them: `cut` shortens what is longer.
    Where figures alone are wider, the widest columns lose their ends.
    """
    widest = [max(map(length, column)) for column in zip(*rows, strict=True)]
    shared = sorted((at for at in range(len(widest)) if at in texts), key=lambda at: widest[at])
    room = width - len(GAP) * (len(widest) - 1) - sum(widest) + sum(widest[at] for at in shared)
    for left, at in zip(range(len(shared), 0, -1), shared, strict=True):
        widest[at] = min(widest[at], max(_NARROWEST_TEXT, room // left))
        room -= widest[at]
    for _ in range(sum(widest) + len(GAP) * (len(widest) - 1) - width):
        widest[widest.index(max(widest))] -= 1

    def cell(at: int, text: str) -> str:
        if length(text) > widest[at]:
            text = cut(text, widest[at]) if at in texts else f"{text[: widest[at] - 1]}…"
        pad = " " * (widest[at] - length(text))
        return text + pad if at in texts else pad + text

    return [[cell(at, text) for at, text in enumerate(row)] for row in rows]


def aligned(
    rows: Sequence[Sequence[str]], texts: Container[int], width: int, cut: Callable[[str, int], str]
) -> list[str]:
    """Lay rows out as lines, none of which ends in a space."""
    return [GAP.join(cells).rstrip() for cells in laid_out(rows, texts, width, cut)]


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
