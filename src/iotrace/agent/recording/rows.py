"""Encode what is recorded at each batch or step: rows of integers, many in one line.

A line of JSON for each would cost the program more than the batch itself.
"""

from __future__ import annotations

from _struct import Struct, error  # type: ignore[attr-defined]
from binascii import b2a_base64
from itertools import starmap

from iotrace.session.guard import ours
from iotrace.session.names import ROW_FIELDS

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Callable

_packs = [Struct(f"<{1 + len(fields)}q").pack for fields in ROW_FIELDS]
_MOST_ROWS = 4096  # in a line: what a damaged one loses


def lines_of(rows: list[tuple[int, ...]], failed: Callable[[str], None]) -> list[str]:
    """Return the lines that hold `rows`, by their kinds; call `failed` with what no row can hold."""
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
