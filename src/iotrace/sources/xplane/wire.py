"""Protobuf's wire format, as far as an XSpace needs it: fields of a message as numbers and byte ranges.

Messages are read where they lie, so a file is mapped and never copied. Nothing recurses, and no length is
trusted beyond the message that holds it.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT_BYTES = 10
_LONGEST_SHIFT = 63
_WORD = 1 << 64


class DamagedError(ValueError):
    """What begins at this byte is no field of a message, or goes on behind the message's end."""


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read the number at `at`; returns it and the index behind it."""
    value = shift = 0
    for index in range(at, min(end, at + _LONGEST_VARINT_BYTES)):
        byte = data[index]
        value |= (byte & 127) << shift
        if byte < 128:
            return value % _WORD, index + 1
        shift += 7
    raise DamagedError(at)


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield each field of the message in ``data[at:end]``: its number, and a value in two numbers.

    Of a varint these are the value and -1, of all others where the content begins and ends.
    """
    while at < end:
        # A call for each number would take half of the time: most tags and sizes have one byte.
        tag, behind = data[at], at + 1
        if tag > 127:
            tag, behind = varint(data, at, end)
        kind = tag & 7
        short = data[behind] if behind < end else 128
        if kind == VARINT:
            value, at, shift = short & 127, behind + 1, 7
            while short > 127:
                if at >= end or shift > _LONGEST_SHIFT:
                    raise DamagedError(at)
                short, at = data[at], at + 1
                value |= (short & 127) << shift
                shift += 7
            yield tag >> 3, value % _WORD, -1
            continue
        if kind == BYTES:
            size, behind = (short, behind + 1) if short < 128 else varint(data, behind, end)
        elif kind in _WIDTHS:
            size = _WIDTHS[kind]
        else:
            raise DamagedError(at)
        if behind + size > end or not tag >> 3:
            raise DamagedError(at)
        yield tag >> 3, behind, behind + size
        at = behind + size


def signed(value: int) -> int:
    """Return what an int64 field holds, whose negative numbers are written as unsigned ones."""
    return value - _WORD if value >= _WORD >> 1 else value
