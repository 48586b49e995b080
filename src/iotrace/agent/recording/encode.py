"""Encode the records of a traced process as JSON, and rows of integers, many in one line.

`import json` costs about 9 ms in every process (it brings `re`); the C string encoder costs nothing. What is
recorded at each batch or step is a row: a line of JSON for each would cost the program more than the batch.
"""

from __future__ import annotations

import os
from _json import encode_basestring_ascii
from _operator import index
from _struct import Struct, error  # type: ignore[attr-defined]
from itertools import starmap

from iotrace.session.guard import ours
from iotrace.session.names import ROW_FIELDS, SPAN_FIELDS, SPAN_FORMAT

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_packs = [Struct(f"<{1 + len(fields)}q").pack for fields in ROW_FIELDS]
_pack_span, _SPAN = Struct(SPAN_FORMAT).pack, len(SPAN_FIELDS)
_MOST_ROWS = 4096  # in a line: what a damaged one loses


def encode(value: Any) -> str:
    """Encode None, bool, int, float, str, list, tuple and dict; anything else by its `repr`."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is str:
        return encode_basestring_ascii(readable(value))
    if kind is float:
        # NaN and infinities are not JSON.
        return repr(value) if value - value == 0.0 else "null"
    if kind is dict:
        pairs = (f"{encode_basestring_ascii(readable(k))}:{encode(v)}" for k, v in value.items())
        return "{" + ",".join(pairs) + "}"
    if kind is list or kind is tuple:
        return "[" + ",".join(map(encode, value)) + "]"
    try:
        return str(index(value))  # numpy's integers and the like
    except ours(TypeError):
        return encode_basestring_ascii(readable(repr(value)))


def readable(text: str) -> str:
    """Return `text` as JSON can hold it: bytes that are no UTF-8, in names of files, become ``\\xNN``."""
    if text.isascii():
        return text
    try:
        return os.fsencode(text).decode(errors="backslashreplace")
    except ours(UnicodeEncodeError):
        return text.encode(errors="backslashreplace").decode()


def lines_of(rows: list[tuple[int, ...]], failed: Callable[[str], None]) -> list[str]:
    """Return the lines that hold `rows`, by their kinds; call `failed` with what no row can hold."""
    from binascii import b2a_base64  # no process needs it that neither reads nor trains

    kinds: list[list[tuple[int, ...]]] = [[] for _ in ROW_FIELDS]
    for row in rows:
        kinds[row[0]].append(row)
    lines = []
    for kind, own in enumerate(kinds):
        for first in range(0, len(own), _MOST_ROWS):
            data = _packed(kind, own[first : first + _MOST_ROWS], failed)
            lines.append(
                f'{{"type":"rows","kind":{kind},"rows":"{b2a_base64(data, newline=False).decode()}"}}'
            )
    return lines


def _packed(kind: int, rows: list[tuple[int, ...]], failed: Callable[[str], None]) -> bytes:
    try:
        return b"".join(starmap(_packs[kind], rows))
    except ours(error):
        found = []
    for row in rows:  # a library's own loader may number its batches by what is no integer
        try:
            found.append(_packs[kind](*row))
        except ours(error) as problem:
            failed(f"no row: {row!r}: {problem!r}")
    return b"".join(found)


def packed_spans(spans: list[Any]) -> bytes:
    """Return what is written of spans; what is too much for a hook is left to be done here.

    Instead of a span it then records a function that makes it, and what that is called with.
    """
    return b"".join(
        starmap(_pack_span, (each if len(each) == _SPAN else each[0](*each[1:]) for each in spans))
    )
