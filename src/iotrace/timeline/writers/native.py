"""Native Perfetto traces: TrackEvents with integer ns of CLOCK_REALTIME, interned strings, named tracks.

The packets of a thread have to be in order of time (`native.c`). So they are written when all its events
are known, from rows sorted by the spill; until then the bodies of events (`track_event.py`) lie in a file.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from iotrace.sources.byte_stream import Progress, append, silent
from iotrace.sources.chrome.batch import Batch, Event, EventBatch, encode_number
from iotrace.sources.chrome.scan import TextBatch
from iotrace.timeline.writers.columns import Columns, renumber
from iotrace.timeline.writers.compiled_native import FIELDS, Packets
from iotrace.timeline.writers.descriptors import (
    COUNTERS_OF_UUID,
    PROCESS_UUID,
    ROOT_UUID,
    data,
    double,
    integer,
    packet,
    text,
)
from iotrace.timeline.writers.id_map import Tracks
from iotrace.timeline.writers.lanes import (
    BEGIN,
    FLOW,
    FLOW_NEXT,
    INSTANT,
    NEXT,
    SLICE,
    STACKED,
    UNBOUND,
    Lanes,
    Rows,
    Spill,
)
from iotrace.timeline.writers.track_event import Bodies, FlowBinding, are_flows, bound, decode, legacy

_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4  # types of a TrackEvent
_ASYNC_TYPES = {"b": _SLICE_BEGIN, "n": _INSTANT, "e": _SLICE_END}
_ASYNC_TYPES |= {"S": _SLICE_BEGIN, "T": _INSTANT, "p": _INSTANT, "F": _SLICE_END}
_COUNTER_UUID = 1 << 42


_Moved = npt.NDArray[np.int64]  # of bodies: the offset, and offset and size of what takes its place


class NativePart:
    """One input's packets. `write` encodes bodies, `finish` puts them in order."""

    needs_all_rows = True

    def __init__(self, path: Path, index: int, process_tables: bool = False) -> None:
        self._path = path
        self._bodies_path = path.with_suffix(".bodies")
        self._direct_path = path.with_suffix(".direct")
        self._bodies: BinaryIO = self._bodies_path.open("w+b")
        self._direct: BinaryIO = self._direct_path.open("w+b")
        self._offset = 0
        self._encoder = Bodies()
        self._counters: dict[tuple[int, str], int] = {}
        self._async: dict[tuple[Any, ...], int] = {}
        self._counters_below = PROCESS_UUID if process_tables else COUNTERS_OF_UUID
        self._process_tables = process_tables
        self.processless_scope = ord("g") if process_tables else 255  # no letter
        self._flows = FlowBinding()
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
        if not self._process_tables:
            flows = are_flows(columns.kinds)
            self._flows.add(offsets[flows], columns.ids[flows], batch.phases[flows])
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
        """What is on no thread's track is written at once."""
        if event.ph == "M":  # names are written again; Perfetto reads no other metadata
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
        uuid = PROCESS_UUID + int(event.pid)  # type: ignore[arg-type]
        if event.ph in _ASYNC_TYPES and (event.id is not UNSET or event.id2 is not UNSET):
            if self._process_tables:
                fields = body + integer(11, uuid) + legacy(event)
            else:
                fields = body + integer(9, _ASYNC_TYPES[event.ph]) + integer(11, self._async_track(event))
        else:
            # The root's row belongs to all inputs: it would not say whose instant this is.
            of_all = event.s == "g" and self._process_tables
            fields = body + integer(9, _INSTANT) + integer(11, ROOT_UUID if of_all else uuid)
        self._direct.write(packet(stamp, self._sequence, data(11, fields)))

    def _async_track(self, event: Event) -> int:
        """The track of what an id joins: of its process, or of the root where the id is the whole trace's.

        Perfetto makes such tracks of legacy events of processes alone.
        """
        own = decode(event.id2) if event.id2 is not UNSET else {}
        is_global = isinstance(own, dict) and "global" in own
        below = ROOT_UUID if is_global else PROCESS_UUID + int(event.pid)  # type: ignore[arg-type]
        key = (below, event.cat, event.id if event.id2 is UNSET else bytes(event.id2))
        if key not in self._async:
            name = text(2, str(event.name or event.cat or "async"))
            self._async[key] = self._track(name + integer(5, below))
        return self._async[key]

    def _track(self, fields: bytes) -> int:
        uuid = self._uuid
        self._uuid += 1
        self._direct.write(packet(self._sequence, data(60, integer(1, uuid) + fields)))
        return uuid

    def _counter(self, event: Event, key: str) -> int:
        """The track of a counter, named as Perfetto names those of JSON."""
        suffix = f" id: {event.id}" if isinstance(event.id, str) else ""  # other ids it does not look at
        name = f"{'' if event.name is UNSET else event.name}{suffix} {key}"
        counter = (int(event.pid), name)  # type: ignore[arg-type]
        uuid = self._counters.get(counter)
        if uuid is None:
            below = integer(5, self._counters_below + counter[0])
            uuid = self._counters[counter] = self._track(below + text(2, name) + data(8, b""))
        return uuid

    def finish(
        self, spill: Spill, tracks: Tracks, delete_unbound: bool, progress: Progress = silent
    ) -> tuple[int, int]:
        """Write the part; returns slices moved to lanes of their own and flow ends that nothing holds.

        `progress` hears how many rows of the spill are done.
        """
        moved = unbound = done = 0
        with_flows = self._with_flows(spill, not delete_unbound)
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
                tracks_of_lanes = {0: thread.tid, STACKED: tracks.stacked_track(thread).tid}
                packets = Packets(self._sequence, out)
                for window, lanes in Lanes(not delete_unbound).through(spill.windows(index)):
                    rows, placed = window, lanes
                    if index in with_flows:
                        rows, placed = _holding_flows(window, lanes, with_flows[index])
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
                    done += len(window)
                    progress(done)
                packets.close()
        if isinstance(bodies, mmap.mmap):
            with suppress(BufferError):  # a sampling profiler, Dask's too, holds what a frame held for longer
                bodies.close()
        self._bodies.close()
        self._direct.close()
        self._bodies_path.unlink()
        self._direct_path.unlink()
        return moved, unbound

    def _with_flows(self, spill: Spill, is_whole: bool) -> dict[int, _Moved]:
        """Append bodies of slices that hold flows to the others; where they lie, by thread."""
        moved: dict[int, _Moved] = {}
        for index in spill.threads() if self._flows else ():
            bodies = self._flows.fields(Lanes(is_whole).through(spill.windows(index)))
            places = np.empty((len(bodies), 3), np.int64)
            for number, (offset, size, fields) in enumerate(bodies):
                self._bodies.seek(offset)
                body = self._bodies.read(size) + fields
                self._bodies.seek(0, os.SEEK_END)
                self._bodies.write(body)
                places[number] = offset, self._offset, len(body)
                self._offset += len(body)
            moved[index] = places
        return moved

    def _write_strings(self, out: BinaryIO) -> None:
        sequence = integer(10, self._index + 2)
        out.write(packet(sequence, integer(13, 1)))
        entries: list[bytes] = []
        for kind, field in FIELDS.items():
            for number, string in enumerate(self._encoder.interned.strings(kind), start=1):
                entries.append(data(field, integer(1, number) + data(2, string)))
                if len(entries) >= 1000:
                    out.write(packet(sequence, integer(13, 2), data(12, b"".join(entries))))
                    entries.clear()
        if entries:
            out.write(packet(sequence, integer(13, 2), data(12, b"".join(entries))))


def _holding_flows(rows: Rows, lanes: Any, moved: _Moved) -> tuple[Rows, Any]:
    """The rows without the flows that slices hold; those slices' bodies lie elsewhere."""
    kept = ~are_flows(rows["kind"]) | (lanes == UNBOUND)
    rows, lanes = rows[kept], lanes[kept]
    if len(moved):
        at = np.minimum(np.searchsorted(moved[:, 0], rows["ordinal"]), len(moved) - 1)
        is_moved = (moved[at, 0] == rows["ordinal"]) & (rows["size"] > 0)
        rows["ordinal"][is_moved], rows["size"][is_moved] = moved[at[is_moved], 1:].T
    return rows, lanes


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
    parts: list[Path], tracks: Iterable[bytes], base_ns: int, document: dict[str, Any], out: BinaryIO
) -> None:
    """Write the trace: the descriptors of its `tracks`, what is known of the inputs, the parts.

    No clock is named: times are then the trace's own, ns of CLOCK_REALTIME, and Perfetto shows no group for
    snapshots of clocks above ours.
    """
    own, first = integer(10, 1), base_ns or 1
    for track in tracks:
        out.write(packet(own, data(60, track)))
    described = encode_number(document["iotrace_merge"]).decode()
    out.write(packet(own, integer(8, first), data(5, data(2, text(1, "iotrace_merge") + text(2, described)))))
    for part in parts:
        append(part, out)
