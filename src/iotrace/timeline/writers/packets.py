"""Packets of one thread in order of time, from its rows and the bodies of its events.

Perfetto stacks begin and end packets in order of time, and in the order of the file where times are equal.
"""

from __future__ import annotations

from typing import Any, BinaryIO

from iotrace import compiled
from iotrace.timeline.writers import compiled_native
from iotrace.timeline.writers.lanes import NEXT, UNBOUND
from iotrace.timeline.writers.protobuf import data, integer, timestamps, varint
from iotrace.timeline.writers.spill import BEGIN, END, FLOW, FLOW_NEXT, MARK, SLICE, Rows

SLICE_BEGIN, SLICE_END, INSTANT, COUNTER = 1, 2, 3, 4  # types of a TrackEvent
_TYPES = {FLOW: 0, FLOW_NEXT: 0, BEGIN: SLICE_BEGIN, END: SLICE_END, MARK: INSTANT}
_FLUSHED_PACKETS = 50_000


def packet(*fields: bytes) -> bytes:
    """A TracePacket in its frame."""
    return data(1, b"".join(fields))


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
            timestamps(rows["start"]),
            timestamps(rows["end"]),
            strict=True,
        ):
            body = bytes(bodies[offset : offset + size])
            if number == UNBOUND:
                if not delete_unbound:
                    packets.append(self._lanes[0].event(INSTANT, stamp, _without_legacy(body)))
                continue
            if number >= NEXT:
                number -= NEXT
                body = body[:-1] + b"\0"  # that it binds the slice around it, which `legacy` writes last
            lane = self._lanes[number]
            stack = lane.stack
            if kind in (SLICE, MARK):
                # Slices of no length at one instant nest, as in Perfetto's import of JSON.
                while stack and stack[-1][0] <= start and stack[-1][2] < start:
                    packets.append(lane.end(stack.pop()[1]))
            else:
                # An arrow may end where its slice ends: that one is still to be open.
                while stack and stack[-1][0] < start:
                    packets.append(lane.end(stack.pop()[1]))
            if kind == SLICE:
                packets.append(lane.event(SLICE_BEGIN, stamp, body))
                stack.append((end, end_stamp, start))
            else:
                packets.append(lane.event(_TYPES[kind], stamp, body))
            if len(packets) > _FLUSHED_PACKETS:
                self._out.write(b"".join(packets))
                packets.clear()
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
        self._end_front, self._end_back = self._frame(SLICE_END, 0)

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


def packets_of_thread(sequence: bytes, out: BinaryIO) -> Packets | compiled_native.Packets:
    """The compiled way, where there is one."""
    return (compiled_native.Packets if compiled.available() else Packets)(sequence, out)


def _without_legacy(body: bytes) -> bytes:
    """A flow's body without its phase: LegacyEvent is its last field."""
    at = body.rfind(b"\x32", 0, -1)
    while at > 0 and at + 2 + body[at + 1] != len(body):
        at = body.rfind(b"\x32", 0, at)
    return body[:at] if at > 0 else body
