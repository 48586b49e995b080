"""Native Perfetto traces: TrackEvents with integer ns of CLOCK_REALTIME, interned strings, named tracks.

Perfetto stacks begin and end packets in order of time, and in the order of the file where times are equal.
So the events of a thread are written when all are known, from rows sorted by the spill.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from msgspec import UNSET

from iotrace.merge.batch import Batch, Columns, EventBatch
from iotrace.merge.events import OPAQUE, Event, encode_number
from iotrace.merge.lanes import UNBOUND, Lanes
from iotrace.merge.protobuf import annotation, data, double, integer, text, timestamps, varint
from iotrace.merge.spill import BEGIN, END, FLOW, MARK, SLICE, Rows, Spill
from iotrace.merge.stream import append
from iotrace.merge.tracks import Process, Tracks

_REALTIME, _BOOTTIME = 1, 6
_PROCESS_UUID = 1 << 40
_GLOBAL_UUID = 1 << 41
_COUNTER_UUID = 1 << 42
_MOST_INTERNED = 200_000  # names that come once each are written where they stand
_LONGEST_REPEATED = 256
_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4
_OTHER_OPAQUE = sorted(OPAQUE - {"args"})
_others = attrgetter(*_OTHER_OPAQUE)
_NO_OTHERS = (UNSET,) * len(_OTHER_OPAQUE)
_FLUSHED_PACKETS = 50_000
_decode = msgspec.json.Decoder().decode


def packet(*fields: bytes) -> bytes:
    """A TracePacket in its frame."""
    return data(1, b"".join(fields))


class _Strings:
    """Interned names of one kind: `field` of InternedData."""

    def __init__(self, field: int) -> None:
        self._field = field
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int | None:
        """The name's number; None where there are too many."""
        found = self._numbers.get(name)
        if found is None and len(self._numbers) < _MOST_INTERNED:
            found = self._numbers[name] = len(self._numbers) + 1
        return found

    def entries(self) -> Iterator[bytes]:
        """Fields of InternedData."""
        for name, number in self._numbers.items():
            yield data(self._field, integer(1, number) + text(2, name))


class NativePart:
    """One source's packets. `write` encodes bodies, `finish` puts them in order."""

    needs_all_rows = True

    def __init__(self, path: Path, place: int) -> None:
        self._path = path
        self._bodies_path = path.with_suffix(".bodies")
        self._direct_path = path.with_suffix(".direct")
        self._bodies: BinaryIO = self._bodies_path.open("w+b")
        self._direct: BinaryIO = self._direct_path.open("w+b")
        self._offset = 0
        self._names, self._categories, self._keys = _Strings(2), _Strings(1), _Strings(3)
        self._heads: dict[tuple[Any, Any], bytes] = {}
        self._labels: dict[str, bytes] = {}
        self._repeated: dict[tuple[str, str | float], bytes] = {}
        self._counters: dict[tuple[int, str], int] = {}
        self._uuid = _COUNTER_UUID * (place + 1)
        # Sequences of interned strings: one per source, 1 is the file's own.
        self._sequence = integer(10, place + 2) + integer(13, 2)
        self._place = place
        self._others = False  # whether some event of the batch has one of Chrome's rarer keys

    def write(self, batch: Batch, columns: Columns) -> tuple[Any, Any]:
        """Encode the events; where their bodies lie, and their sizes."""
        assert isinstance(batch, EventBatch)  # no text was kept for native output
        batch.number(columns)
        self._others = any(_others(event) != _NO_OTHERS for event in batch.events)
        bodies = []
        for place, (event, start, kind) in enumerate(
            zip(batch.events, columns.start_ns.tolist(), columns.kinds.tolist(), strict=True)
        ):
            body = self._body(event, batch.extra.get(place))
            if kind > MARK:
                self._elsewhere(event, start, body)
                body = b""
            elif kind == FLOW:
                body += self._legacy(event)
            bodies.append(body)
        sizes = np.array([len(body) for body in bodies], np.int32)
        offsets = self._offset + np.concatenate([[0], np.cumsum(sizes[:-1], dtype=np.int64)])
        joined = b"".join(bodies)
        self._bodies.write(joined)
        self._offset += len(joined)
        return offsets.astype(np.int64), sizes

    def _body(self, event: Event, extra: dict[str, Any] | None) -> bytes:
        """Name, category and arguments as fields of TrackEvent."""
        try:
            head = self._heads[event.name, event.cat]
        except KeyError:
            head = self._head(event.name, event.cat)
        pieces = [head]
        if event.args is not UNSET:
            args = _decode(event.args)
            if isinstance(args, dict):
                for key, value in args.items():
                    if value is not None:  # Perfetto takes none of JSON's nulls
                        pieces.append(self._annotation(key, value))
            else:
                pieces.append(self._annotation("args", args))
        if self._others:
            for key in _OTHER_OPAQUE:
                value = getattr(event, key)
                if value is not UNSET:
                    pieces.append(self._annotation(key, _decode(value)))
        if extra:
            for key, value in extra.items():
                pieces.append(self._annotation(key, _decode(encode_number(value))))
        if event.ph == "X" and event.id is not UNSET:
            pieces.append(self._annotation("id", event.id))
        return b"".join(pieces)

    def _head(self, name: Any, category: Any) -> bytes:
        name = "" if name is UNSET else name
        number = self._names.number(name)
        head = integer(10, number) if number else text(23, name)
        if category is not UNSET and category:
            number = self._categories.number(category)
            head += integer(3, number) if number else text(22, category)
        if len(self._heads) < _MOST_INTERNED:
            self._heads[name, category] = head
        return head

    def _annotation(self, key: str, value: Any) -> bytes:
        """The annotation as a field of TrackEvent; texts and fractions come again and again."""
        if type(value) is str or type(value) is float:
            found = self._repeated.get((key, value))
            if found is None:
                found = self._encoded(key, value)
                if len(self._repeated) < _MOST_INTERNED and len(found) < _LONGEST_REPEATED:
                    self._repeated[key, value] = found
            return found
        return self._encoded(key, value)

    def _encoded(self, key: str, value: Any) -> bytes:
        label = self._labels.get(key)
        if label is None:
            number = self._keys.number(key)
            label = integer(1, number) if number else text(10, key)
            if len(self._labels) < _MOST_INTERNED:
                self._labels[key] = label
        return data(4, annotation(label, value))

    @staticmethod
    def _legacy(event: Event) -> bytes:
        """The phase and the id, as Perfetto has them from Chrome."""
        fields = integer(2, ord(event.ph[:1] or "i"))
        if isinstance(event.id, int):
            fields += integer(6, event.id)
        if event.bp == "e":
            fields += integer(12, 1)
        return data(6, fields)

    def _elsewhere(self, event: Event, start: int, body: bytes) -> None:
        """What stands on no thread's row is written at once."""
        if event.ph == "M":  # names are written anew; Perfetto reads no other metadata
            return
        stamp = integer(8, start)
        if event.ph == "C":
            args = _decode(event.args) if event.args is not UNSET else None
            for key, value in args.items() if isinstance(args, dict) else ():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    uuid = self._counter(event, key)
                    fields = integer(9, _COUNTER) + integer(11, uuid) + double(44, float(value))
                    self._direct.write(packet(stamp, self._sequence, data(11, fields)))
            return
        pid, tid = event.pid, event.tid
        if event.ph in "bneSTFp" and event.id is not UNSET:
            fields = body + integer(11, int(tid)) + self._legacy(event)  # type: ignore[arg-type]
        else:
            uuid = _GLOBAL_UUID if event.s == "g" else _PROCESS_UUID + int(pid)  # type: ignore[arg-type]
            fields = body + integer(9, _INSTANT) + integer(11, uuid)
        self._direct.write(packet(stamp, self._sequence, data(11, fields)))

    def _counter(self, event: Event, key: str) -> int:
        """The track of a counter, named as Perfetto names those of JSON."""
        name = f"{'' if event.name is UNSET else event.name} {key}"
        place = (int(event.pid), name)  # type: ignore[arg-type]
        uuid = self._counters.get(place)
        if uuid is None:
            uuid = self._counters[place] = self._uuid
            self._uuid += 1
            track = integer(1, uuid) + integer(5, _PROCESS_UUID + place[0]) + text(2, name) + data(8, b"")
            self._direct.write(packet(self._sequence, data(60, track)))
        return uuid

    def finish(self, spill: Spill, tracks: Tracks, delete_unbound: bool) -> tuple[int, int]:
        """Write the part; returns slices moved to lanes of their own and arrow ends that nothing holds."""
        moved = unbound = 0
        self._bodies.flush()
        self._direct.flush()
        with self._path.open("wb") as out:
            self._write_strings(out)
            self._direct.seek(0)
            while block := self._direct.read(1 << 20):
                out.write(block)
            bodies = mmap.mmap(self._bodies.fileno(), 0, access=mmap.ACCESS_READ) if self._offset else b""
            for index in spill.threads():
                lanes = Lanes()
                writers: dict[int, _Row] = {}
                for rows in spill.windows(index):
                    placed = lanes.place(rows).tolist()
                    for lane in set(placed) - writers.keys() - {UNBOUND}:
                        thread = tracks.overflow(tracks.threads[index], lane)
                        writers[lane] = _Row(thread.tid, self._sequence)
                    if UNBOUND in placed and 0 not in writers:
                        writers[0] = _Row(tracks.threads[index].tid, self._sequence)
                    found = _write_rows(rows, placed, writers, bodies, out, delete_unbound)
                    moved, unbound = moved + found[0], unbound + found[1]
                    if isinstance(bodies, mmap.mmap):  # what was read counts as memory until it is given back
                        bodies.madvise(mmap.MADV_DONTNEED)
                for writer in writers.values():
                    out.write(b"".join(writer.close()))
        if isinstance(bodies, mmap.mmap):
            bodies.close()
        self._bodies.close()
        self._direct.close()
        self._bodies_path.unlink()
        self._direct_path.unlink()
        return moved, unbound

    def _write_strings(self, out: BinaryIO) -> None:
        defaults = data(59, integer(58, _REALTIME))
        sequence = integer(10, self._place + 2)
        out.write(packet(sequence, integer(13, 1), defaults))
        entries: list[bytes] = []
        for strings in (self._categories, self._names, self._keys):
            for entry in strings.entries():
                entries.append(entry)
                if len(entries) >= 1000:
                    out.write(packet(sequence, integer(13, 2), data(12, b"".join(entries))))
                    entries.clear()
        if entries:
            out.write(packet(sequence, integer(13, 2), data(12, b"".join(entries))))


class _Row:
    """Packets of one lane; `stack` holds the ends of its open slices."""

    def __init__(self, tid: int, sequence: bytes) -> None:
        self._sequence = sequence
        self._track = integer(11, tid)
        self._frames: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self.stack: list[tuple[int, bytes, int]] = []
        end = self._frame(_SLICE_END, 0)
        self._end_front, self._end_back = end

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

    def close(self) -> list[bytes]:
        """The ends of all that is open."""
        found = [self.end(stamp) for _, stamp, _ in reversed(self.stack)]
        self.stack.clear()
        return found


def _write_rows(
    rows: Rows, placed: list[int], writers: dict[int, _Row], bodies: Any, out: BinaryIO, delete_unbound: bool
) -> tuple[int, int]:
    moved = unbound = 0
    packets: list[bytes] = []
    for lane, start, end, kind, offset, size, stamp, end_stamp in zip(
        placed,
        rows["start"].tolist(),
        rows["end"].tolist(),
        rows["kind"].tolist(),
        rows["ordinal"].tolist(),
        rows["size"].tolist(),
        timestamps(rows["start"]),
        timestamps(rows["end"]),
        strict=True,
    ):
        body = bodies[offset : offset + size]
        if lane == UNBOUND:
            unbound += 1
            if not delete_unbound:
                packets.append(writers[0].event(_INSTANT, stamp, _without_legacy(body)))
            continue
        moved += lane > 0 and kind == SLICE
        row = writers[lane]
        stack = row.stack
        if kind == SLICE:
            # Slices of no length at one instant nest, as in Perfetto's import of JSON.
            while stack and stack[-1][0] <= start and stack[-1][2] < start:
                packets.append(row.end(stack.pop()[1]))
            packets.append(row.event(_SLICE_BEGIN, stamp, body))
            stack.append((end, end_stamp, start))
        elif kind == END:  # without a name: it ends what began last
            packets.append(row.end(stamp))
        else:
            # An arrow may end where its slice ends: that one is still to be open.
            while stack and stack[-1][0] < start:
                packets.append(row.end(stack.pop()[1]))
            packets.append(row.event(_EVENT_TYPES[kind], stamp, body))
        if len(packets) > _FLUSHED_PACKETS:
            out.write(b"".join(packets))
            packets.clear()
    out.write(b"".join(packets))
    return moved, unbound


_EVENT_TYPES = {FLOW: 0, BEGIN: _SLICE_BEGIN, MARK: _INSTANT}


def _without_legacy(body: bytes) -> bytes:
    """A flow's body without its phase: LegacyEvent is its last field."""
    at = body.rfind(b"\x32")
    while at > 0 and at + 2 + body[at + 1] != len(body):
        at = body.rfind(b"\x32", 0, at)
    return body[:at] if at > 0 else body


def join(parts: list[Path], processes: list[Process], document: dict[str, Any], out: BinaryIO) -> None:
    """Write the trace: its clock, names of processes and threads, what is known of the sources, the parts."""
    first = document["baseTimeNanoseconds"] or 1
    # Both clocks are said to be the same: the trace's times stay CLOCK_REALTIME.
    clocks = b"".join(data(1, integer(1, clock) + integer(2, first)) for clock in (_REALTIME, _BOOTTIME))
    own = integer(10, 1)
    out.write(packet(own, integer(8, first), integer(58, _REALTIME), data(6, clocks + integer(2, _REALTIME))))
    # The tracks' own numbers join the packets; those that are shown can be dense and in order, by which
    # Perfetto sorts the threads of native traces. No thread's is a process's, which would make it a main one.
    shown = count(1001 if len(processes) < 1000 else len(processes) + 1)
    for process in processes:
        fields = integer(1, process.order) + text(6, process.name) + integer(3, process.order)
        if process.labels:
            fields += text(8, process.labels)
        track = integer(1, _PROCESS_UUID + process.pid) + data(3, fields)
        out.write(packet(own, data(60, track)))
        for thread in process.threads:
            fields = integer(1, process.order) + integer(2, next(shown)) + text(5, thread.name)
            track = integer(1, thread.tid) + data(4, fields + integer(3, thread.order))
            out.write(packet(own, data(60, track)))
    out.write(packet(own, data(60, integer(1, _GLOBAL_UUID) + text(2, "whole trace"))))
    told = encode_number(document["iotrace_merge"]).decode()
    out.write(packet(own, integer(8, first), data(5, data(2, text(1, "iotrace_merge") + text(2, told)))))
    for part in parts:
        append(part, out)
