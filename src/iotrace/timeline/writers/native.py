"""Native Perfetto traces: TrackEvents with integer ns of CLOCK_REALTIME, interned strings, named tracks.

The packets of a thread have to stand in order of time (`native.c`). So they are written when all its events
are known, from rows sorted by the spill; until then the bodies of events (`track_event.py`) lie in a file.
"""

from __future__ import annotations

import math
import mmap
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from msgspec import UNSET

from iotrace.sources.byte_stream import Progress, append, silent
from iotrace.sources.chrome.batch import Batch, EventBatch
from iotrace.sources.chrome.event import Event, encode_number
from iotrace.sources.chrome.raw_batch import TextBatch
from iotrace.timeline.writers.columns import Columns, renumber
from iotrace.timeline.writers.compiled_native import FIELDS, Packets
from iotrace.timeline.writers.id_map import Process, Tracks
from iotrace.timeline.writers.lanes import NEXT, STACKED, UNBOUND, Lanes
from iotrace.timeline.writers.protobuf import data, double, integer, packet, text
from iotrace.timeline.writers.spill import BEGIN, FLOW, FLOW_NEXT, INSTANT, SLICE, Spill
from iotrace.timeline.writers.track_event import Bodies, bound, decode, legacy

_REALTIME, _BOOTTIME = 1, 6
_INSTANT, _COUNTER = 3, 4  # types of a TrackEvent
_PROCESS_UUID = 1 << 40
_GLOBAL_UUID = 1 << 41
_COUNTER_UUID = 1 << 42


class NativePart:
    """One input's packets. `write` encodes bodies, `finish` puts them in order."""

    needs_all_rows = True

    def __init__(self, path: Path, index: int) -> None:
        self._path = path
        self._bodies_path = path.with_suffix(".bodies")
        self._direct_path = path.with_suffix(".direct")
        self._bodies: BinaryIO = self._bodies_path.open("w+b")
        self._direct: BinaryIO = self._direct_path.open("w+b")
        self._offset = 0
        self._encoder = Bodies()
        self._counters: dict[tuple[int, str], int] = {}
        self._uuid = _COUNTER_UUID * (index + 1)
        # Sequences of interned strings: one per input, 1 is the file's own.
        self._sequence = integer(10, index + 2) + integer(13, 2)
        self._index = index

    def write(self, batch: Batch, columns: Columns) -> tuple[Any, Any]:
        """Encode the events; where their bodies lie, and their sizes."""
        sizes = np.zeros(len(batch), np.int32)
        if isinstance(batch, EventBatch):
            self._write_events(batch, columns, sizes, 0)
        elif isinstance(batch, TextBatch):
            self._write_text(batch, columns, sizes)
        offsets = self._offset + np.concatenate([[0], np.cumsum(sizes[:-1], dtype=np.int64)])
        self._offset += int(sizes.sum(dtype=np.int64))
        return offsets.astype(np.int64), sizes

    def _write_text(self, batch: TextBatch, columns: Columns, sizes: Any) -> None:
        """By the compiled encoder, and what it refuses run by run, decoded."""
        interned = self._encoder.interned
        rows = np.ascontiguousarray(batch.rows)
        kinds, ids = np.ascontiguousarray(columns.kinds), np.ascontiguousarray(columns.ids)
        refused = (kinds > INSTANT) | (rows["others"] != 0)
        taken = np.append(np.flatnonzero(~refused), len(rows))
        first, out = 0, interned.room_for(rows)
        while True:
            stop, bodies = interned.bodies(batch.text, rows, first, kinds, ids, sizes, out)
            self._bodies.write(bodies)
            if stop == len(rows):
                return
            first = int(taken[np.searchsorted(taken, stop, side="right")]) if refused[stop] else stop + 1
            self._write_events(batch.decoded(stop, first), columns.between(stop, first), sizes, stop)

    def _write_events(self, batch: EventBatch, columns: Columns, sizes: Any, first: int) -> None:
        renumber(batch, columns)
        for row, (event, start, kind) in enumerate(
            zip(batch.events, columns.start_ns.tolist(), columns.kinds.tolist(), strict=True)
        ):
            body = self._encoder.body(event, batch.extra.get(row))
            if kind > INSTANT:
                self._elsewhere(event, start, body)
                continue
            if kind in (FLOW, FLOW_NEXT):
                body += legacy(event)
            elif kind in (SLICE, BEGIN):
                body += bound(event)
            self._bodies.write(body)
            sizes[first + row] = len(body)

    def _elsewhere(self, event: Event, start: int, body: bytes) -> None:
        """What stands on no thread's track is written at once."""
        if event.ph == "M":  # names are written anew; Perfetto reads no other metadata
            return
        stamp = integer(8, start)
        if event.ph == "C":
            args = decode(event.args) if event.args is not UNSET else None
            for key, value in args.items() if isinstance(args, dict) else ():
                number = _number(value)
                if number is not None:
                    uuid = self._counter(event, key)
                    fields = integer(9, _COUNTER) + integer(11, uuid) + double(44, number)
                    self._direct.write(packet(stamp, self._sequence, data(11, fields)))
            return
        uuid = _PROCESS_UUID + int(event.pid)  # type: ignore[arg-type]
        if event.ph in "bneSTFp" and (event.id is not UNSET or event.id2 is not UNSET):
            fields = body + integer(11, uuid) + legacy(event)
        else:
            fields = body + integer(9, _INSTANT) + integer(11, _GLOBAL_UUID if event.s == "g" else uuid)
        self._direct.write(packet(stamp, self._sequence, data(11, fields)))

    def _counter(self, event: Event, key: str) -> int:
        """The track of a counter, named as Perfetto names those of JSON."""
        suffix = f" id: {event.id}" if isinstance(event.id, str) else ""  # other ids it does not look at
        name = f"{'' if event.name is UNSET else event.name}{suffix} {key}"
        counter = (int(event.pid), name)  # type: ignore[arg-type]
        uuid = self._counters.get(counter)
        if uuid is None:
            uuid = self._counters[counter] = self._uuid
            self._uuid += 1
            track = integer(1, uuid) + integer(5, _PROCESS_UUID + counter[0]) + text(2, name) + data(8, b"")
            self._direct.write(packet(self._sequence, data(60, track)))
        return uuid

    def finish(
        self, spill: Spill, tracks: Tracks, delete_unbound: bool, progress: Progress = silent
    ) -> tuple[int, int]:
        """Write the part; returns slices moved to lanes of their own and flow ends that nothing holds.

        `progress` hears how many rows of the spill are done.
        """
        moved = unbound = done = 0
        self._bodies.flush()
        self._direct.flush()
        with self._path.open("wb") as out:
            self._write_strings(out)
            self._direct.seek(0)
            while block := self._direct.read(1 << 20):
                out.write(block)
            bodies = mmap.mmap(self._bodies.fileno(), 0, access=mmap.ACCESS_READ) if self._offset else b""
            for index in spill.threads():
                thread = tracks.threads[index]
                tracks_of_lanes = {0: thread.tid, STACKED: tracks.stacked_of(thread).tid}
                packets = Packets(self._sequence, out)
                for rows, placed in Lanes(not delete_unbound).through(spill.windows(index)):
                    used = {lane & ~NEXT for lane in np.unique(placed).tolist() if lane != UNBOUND}
                    for lane in sorted(used - tracks_of_lanes.keys()):
                        tracks_of_lanes[lane] = tracks.overflow(thread, lane).tid
                    packets.write(rows, placed, tracks_of_lanes, bodies, delete_unbound)
                    moved += int(((placed > 0) & (rows["kind"] == SLICE)).sum())
                    loose = int((placed == UNBOUND).sum())
                    unbound += loose
                    thread.used |= loose > 0 and not delete_unbound  # they became instants
                    if isinstance(bodies, mmap.mmap):  # what was read counts as memory until it is given back
                        bodies.madvise(mmap.MADV_DONTNEED)
                    done += len(rows)
                    progress(done)
                packets.close()
        if isinstance(bodies, mmap.mmap):
            bodies.close()
        self._bodies.close()
        self._direct.close()
        self._bodies_path.unlink()
        self._direct_path.unlink()
        return moved, unbound

    def _write_strings(self, out: BinaryIO) -> None:
        defaults = data(59, integer(58, _REALTIME))
        sequence = integer(10, self._index + 2)
        out.write(packet(sequence, integer(13, 1), defaults))
        entries: list[bytes] = []
        for kind, field in FIELDS.items():
            for number, string in enumerate(self._encoder.interned.strings(kind), start=1):
                entries.append(data(field, integer(1, number) + data(2, string)))
                if len(entries) >= 1000:
                    out.write(packet(sequence, integer(13, 2), data(12, b"".join(entries))))
                    entries.clear()
        if entries:
            out.write(packet(sequence, integer(13, 2), data(12, b"".join(entries))))


def _number(value: Any) -> float | None:
    """A counter's value, as Perfetto reads it from JSON, texts included; None where it is no number."""
    if isinstance(value, str) and "_" not in value and not value[-1:].isspace():
        try:
            value = float.fromhex(value) if "x" in value.lower() else float(value)
        except (ValueError, OverflowError):
            return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def join(
    parts: list[Path], processes: list[Process], base_ns: int, document: dict[str, Any], out: BinaryIO
) -> None:
    """Write the trace: its clock, names of processes and threads, what is known of the inputs, the parts."""
    first = base_ns or 1
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
    described = encode_number(document["iotrace_merge"]).decode()
    out.write(packet(own, integer(8, first), data(5, data(2, text(1, "iotrace_merge") + text(2, described)))))
    for part in parts:
        append(part, out)
