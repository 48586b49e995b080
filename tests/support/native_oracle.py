"""Native output's interned strings and packets in Python: the oracle of `native.c`, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from iotrace.timeline.writers.compiled_native import FIELDS
from iotrace.timeline.writers.descriptors import integer, varint
from iotrace.timeline.writers.lanes import BEGIN, END, FLOW, FLOW_NEXT, INSTANT, NEXT, SLICE, UNBOUND, Rows

_SLICE_BEGIN, _SLICE_END, _INSTANT = 1, 2, 3  # types of a TrackEvent
_TYPES = {FLOW: 0, FLOW_NEXT: 0, BEGIN: _SLICE_BEGIN, END: _SLICE_END, INSTANT: _INSTANT}


class Interned:
    """Strings that packets name by a number, from 1, by kind."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers: list[dict[bytes, int]] = [{} for _ in FIELDS]

    def number(self, kind: int, text: bytes) -> int:
        """The string's number; 0 where there are too many."""
        numbers = self._numbers[kind]
        found = numbers.get(text)
        if found is None and len(numbers) < self._most:
            found = numbers[text] = len(numbers) + 1
        return found or 0

    def strings(self, kind: int) -> Iterator[bytes]:
        """All of a kind, in the order of their numbers."""
        yield from self._numbers[kind]


class Packets:
    """Writes a thread's packets to `out`. `sequence` are the fields that say where their names are from."""

    def __init__(self, sequence: bytes, out: BinaryIO) -> None:
        self._sequence = sequence
        self._out = out
        self._lanes: dict[int, _Lane] = {}

    def write(
        self, rows: Rows, placed: Any, tracks: dict[int, int], bodies: Any, delete_unbound: bool
    ) -> None:
        """The rows' packets, and ends of slices where they are due. `tracks`: of all lanes, `STACKED` too."""
        for number in tracks.keys() - self._lanes.keys():
            self._lanes[number] = _Lane(tracks[number], self._sequence)
        packets: list[bytes] = []
        for number, start, end, kind, offset, size, stamp, end_stamp in zip(
            placed.tolist(),
            rows["start"].tolist(),
            rows["end"].tolist(),
            rows["kind"].tolist(),
            rows["ordinal"].tolist(),
            rows["size"].tolist(),
            _timestamps(rows["start"]),
            _timestamps(rows["end"]),
            strict=True,
        ):
            body = bytes(bodies[offset : offset + size])
            if number == UNBOUND:
                if not delete_unbound:
                    packets.append(self._lanes[0].event(_INSTANT, stamp, _without_legacy(body)))
                continue
            if number >= NEXT:
                number -= NEXT
                body = body[:-1] + b"\0"  # that it binds the slice around it, which `legacy` writes last
            lane = self._lanes[number]
            stack = lane.stack
            if kind in (SLICE, INSTANT):
                # Slices of no length at one instant nest, as in Perfetto's import of JSON.
                while stack and stack[-1][0] <= start and stack[-1][2] < start:
                    packets.append(lane.end(stack.pop()[1]))
            else:
                # A flow may end where its slice ends: that one is still to be open.
                while stack and stack[-1][0] < start:
                    packets.append(lane.end(stack.pop()[1]))
            if kind == SLICE:
                packets.append(lane.event(_SLICE_BEGIN, stamp, body))
                stack.append((end, end_stamp, start))
            else:
                packets.append(lane.event(_TYPES[kind], stamp, body))
        self._out.write(b"".join(packets))

    def close(self) -> None:
        """The ends of all that is open."""
        for _, lane in sorted(self._lanes.items()):
            self._out.write(b"".join(lane.end(stamp) for _, stamp, _ in reversed(lane.stack)))
        self._lanes.clear()


class _Lane:
    """Packets of one lane; `stack` holds the open slices: end, its stamp, start."""

    def __init__(self, track: int, sequence: bytes) -> None:
        self._sequence = sequence
        self._track = integer(11, track)
        self._frames: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self.stack: list[tuple[int, bytes, int]] = []
        self._end_front, self._end_back = self._frame(_SLICE_END, 0)

    def _frame(self, kind: int, size: int) -> tuple[bytes, bytes]:
        """What stands before and after the time, for a body of this size."""
        found = self._frames.get((kind, size))
        if found is None:
            inner = (integer(9, kind) if kind else b"") + self._track
            back = self._sequence + varint(11 << 3 | 2) + varint(len(inner) + size) + inner
            front = varint(8 << 3)
            frame = b"\x0a" + varint(len(front) + 9 + len(back) + size) + front
            found = self._frames[kind, size] = (frame, back)
        return found

    def event(self, kind: int, stamp: bytes, body: bytes) -> bytes:
        """A packet; kind 0 leaves the phase to the body."""
        front, back = self._frame(kind, len(body))
        return front + stamp + back + body

    def end(self, stamp: bytes) -> bytes:
        """The end of the innermost slice."""
        return self._end_front + stamp + self._end_back


def _without_legacy(body: bytes) -> bytes:
    """A flow's body without its phase: LegacyEvent is its last field."""
    at = body.rfind(b"\x32", 0, -1)
    while at > 0 and at + 2 + body[at + 1] != len(body):
        at = body.rfind(b"\x32", 0, at)
    return body[:at] if at > 0 else body


def _timestamps(times_ns: npt.NDArray[np.int64]) -> list[bytes]:
    """Each time as a varint of nine bytes: padding is legal, and one width lets numpy do it."""
    shifted = times_ns[:, None] >> np.arange(0, 63, 7, dtype=np.int64)[None, :]
    octets = (shifted & 127 | 128).astype(np.uint8)
    octets[:, 8] &= 127
    joined = octets.tobytes()
    return [joined[at : at + 9] for at in range(0, len(joined), 9)]
