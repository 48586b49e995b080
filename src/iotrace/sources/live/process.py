"""One process of a session that runs: its newest records and spans.

The end of a file that grows, read once and in bounded pieces.

A sidecar of a session that runs: its newest samples.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace.session import names
from iotrace.session.reading import open_regular
from iotrace.sources.clocks.anchors import AnchorSource
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.columns import Columns
from iotrace.sources.processes import SPAN_DTYPE
from iotrace.sources.records import (
    End,
    Identity,
    Idle,
    IteratorEnd,
    IteratorStart,
    Record,
    Text,
    Tick,
    Worker,
)
from iotrace.sources.rows import TIME_FIELDS, decode_lines, divided, joined, line_ns
from iotrace.sources.samples import (
    SAMPLE_DTYPE,
    GpuRecord,
    SamplerEnd,
    SamplerRecord,
    Sidecar,
    SidecarRecord,
    SystemRecord,
)

_BLOCK_BYTES = 1 << 20
_FIRST_ROWS = 2048


class Tail:
    """Follows a file of lines: each whole line once, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0

    def grown(self) -> int:
        """Count the bytes that were appended since the last `read`."""
        try:
            return max(0, os.stat(self.path).st_size - self._position)
        except OSError:  # not there yet
            return 0

    def read(self, most_bytes: int) -> tuple[bytes, tuple[int, int]]:
        """Return the whole lines since the last call, and the bytes ``[start, end)`` that were passed over.

        Where more than `most_bytes` were appended, only the newest of them are read.
        """
        first = self._position
        end = first + self.grown()
        start = max(first, end - most_bytes)
        data = self._piece(start, end) if end > first else b""
        if start > first:  # in the middle of a line
            cut = data.find(b"\n") + 1
            start, data = start + cut, data[cut:]
        data = data[: data.rfind(b"\n") + 1]  # the last line may be half written
        self._position = start + len(data)
        return data, (first, start)

    def search(self, pattern: re.Pattern[bytes], span: tuple[int, int]) -> list[bytes]:
        """Find lines in the bytes ``[start, end)`` that were passed over; `pattern` begins with a newline."""
        start, end = span
        lines: list[bytes] = []
        rest = b"\n"
        while start < end:
            data = self._piece(start, min(end, start + _BLOCK_BYTES))
            if not data:
                break
            start += len(data)
            whole, _, rest = (rest + data).rpartition(b"\n")
            rest = b"\n" + rest
            lines += [line[1:] for line in pattern.findall(whole)]
        return lines

    def _piece(self, start: int, end: int) -> bytes:
        try:
            with open_regular(self.path, inside=True) as file:
                file.seek(start)
                return file.read(end - start)
        except OSError:
            return b""


def last_rows(
    path: Path, dtype: np.dtype[Any], since_ns: int, most_bytes: int
) -> tuple[npt.NDArray[Any], bool]:
    """Return the rows at the end of `path`, back to one that lies before `since_ns`; whether it was reached.

    A row's time is its first field, plus ``duration_ns`` where it has one.
    """
    try:
        with open_regular(path, inside=True) as file:
            total = os.fstat(file.fileno()).st_size // dtype.itemsize
            most = max(1, most_bytes // dtype.itemsize)
            count = min(total, most, _FIRST_ROWS)
            while True:
                file.seek((total - count) * dtype.itemsize)
                rows = np.frombuffer(file.read(count * dtype.itemsize), dtype)
                reached = count == total or bool(len(rows) and _times(rows[:1])[0] < since_ns)
                if reached or count == min(total, most):
                    return rows[_times(rows) >= since_ns].copy(), reached
                count = min(4 * count, total, most)
    except OSError:
        return np.empty(0, dtype), True


def _times(rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    names = rows.dtype.names or ()
    times: npt.NDArray[np.int64] = rows[names[0]]
    return times + rows["duration_ns"] if "duration_ns" in names else times


_MOST_BYTES = 4 << 20  # of records, at one look
_MOST_RECORDS = 20_000
_MOST_TEXTS = 32_768
_MOST_SPAN_BYTES = 4 << 20
_MOST_PASSES = 64
# Records that come often, as rows do. The others are rare, and are kept.
_FREQUENT = (Tick, IteratorEnd, Idle)
_RARE = re.compile(
    rb'\n(?!\{"type":"(?:rows|batch|round|blocked|produced|iterator_end|mark|tick|exposed|phase|idle)")[^\n]+'
)


def _made_ns(record: Record) -> int:
    """When a record of `_FREQUENT` was made, of CLOCK_MONOTONIC; 0 of all others."""
    if isinstance(record, Tick):
        return record.clock[0]
    return record.mono_ns if isinstance(record, IteratorEnd | Idle) else 0


class LiveProcess:
    """A process's directory, read as it grows.

    `whole` until older records were given up. `newest_ns` is when the newest record was made, of
    CLOCK_MONOTONIC: what was made before is on disk.
    """

    def __init__(self, directory: Path, identity: Identity) -> None:
        self._directory = directory
        self.identity = identity
        self.records: list[Record] = []
        self.arrays: dict[int, Columns] = {}
        self.texts: dict[int, str] = {}
        self.whole = True
        self.newest_ns = identity.clock[0]
        self._tail = Tail(directory / names.RECORDS)

    @property
    def ended(self) -> bool:
        """Whether the process wrote its last record."""
        return bool(self.records) and isinstance(self.records[-1], End)

    @property
    def is_worker(self) -> bool:
        """Whether it is a loader's worker."""
        return any(isinstance(record, Worker) for record in self.records)

    @property
    def trains(self) -> bool:
        """Whether it is a rank or a loader's worker, as far as is known."""
        has_rows = names.MARK_ROW in self.arrays or names.ROUND_ROW in self.arrays
        return has_rows or any(isinstance(record, IteratorStart | Worker) for record in self.records)

    @property
    def anchors(self) -> AnchorSource:
        """What its clock is made from."""
        who = self.identity
        ticks = [record.clock for record in self.records if isinstance(record, Tick)]
        return AnchorSource(who.node, who.host, who.boot_id, [who.clock, *ticks], who.pid, self.ended)

    def poll(self) -> None:
        """Read what was appended to the records."""
        if self.ended:
            return
        data, passed = self._tail.read(_MOST_BYTES)
        if passed[0] < passed[1]:
            self.whole = False
            self.records = [record for record in self.records if not isinstance(record, _FREQUENT)]
            self.arrays.clear()
            rare = self._tail.search(_RARE, passed)
            self._add(decode_lines(b"\n".join(rare), Record)[0])
        self._add(decode_lines(data, Record)[0])

    def _add(self, records: list[Record]) -> None:
        others, arrays = divided(records, self.texts)
        self.records += [record for record in others if not isinstance(record, Text)]
        for kind, rows in arrays.items():
            self.arrays[kind] = joined(kind, [self.arrays[kind], rows] if kind in self.arrays else [rows])
        made = (
            line_ns(each) or (0 if isinstance(each, Idle) else _made_ns(each)) for each in reversed(records)
        )
        self.newest_ns = max(self.newest_ns, next(filter(None, made), 0))
        if len(self.texts) > _MOST_TEXTS:
            self.texts = dict(list(self.texts.items())[-_MOST_TEXTS:])
        times = [
            rows[field] for kind, rows in self.arrays.items() if (field := TIME_FIELDS[kind]) is not None
        ]
        every = np.concatenate([np.array([], np.int64), *times])
        if len(every) > _MOST_RECORDS:
            self.forget(int(np.partition(every, -_MOST_RECORDS)[-_MOST_RECORDS]))

    def forget(self, before_ns: int) -> None:
        """Give up the frequent records, and the rows, made before `before_ns` of CLOCK_MONOTONIC."""
        old = [isinstance(each, _FREQUENT) and _made_ns(each) < before_ns for each in self.records]
        kept = {
            kind: rows[rows[field] >= before_ns].whole()
            for kind, rows in self.arrays.items()
            if (field := TIME_FIELDS[kind]) is not None
        }
        self.whole = self.whole and not any(old) and all(len(kept[of]) == len(self.arrays[of]) for of in kept)
        batches = kept.get(names.BATCH_ROW, Columns(0, {"iterator": 0}))
        exposed = self.arrays.get(names.EXPOSED_ROW)
        if exposed is not None:  # one of a batch at most, and recorded after it
            kept[names.EXPOSED_ROW] = exposed[max(0, len(exposed) - len(batches)) :].whole()
        self.arrays = kept
        starts = [record for record in self.records if isinstance(record, IteratorStart)]
        earlier = [start for start in starts if start.mono_ns < before_ns]
        forgotten = {start.iterator for start in earlier[:-_MOST_PASSES]} - {*batches["iterator"].tolist()}
        self.records = [
            record
            for record, is_old in zip(self.records, old, strict=True)
            if not is_old and not (isinstance(record, IteratorStart) and record.iterator in forgotten)
        ]

    def spans(self, clock: Clock, since_ns: int) -> tuple[Columns, int]:
        """Read the spans that ended since `since_ns`, in the session's time; from when on all are known."""
        rows, reached = last_rows(
            self._directory / names.SPANS, SPAN_DTYPE, since_ns - clock.offset_ns, _MOST_SPAN_BYTES
        )
        rows["start_ns"] = clock.times_to_session_ns(rows["start_ns"])
        known = reached or not len(rows)
        return Columns.of(rows), since_ns if known else int(rows["start_ns"][0] + rows["duration_ns"][0])


SAMPLED_NS = 10_000_000_000  # samples so old are read, from the newest one on
_MOST_RECORD_BYTES = 4 << 20
_MOST_SAMPLE_BYTES = 1 << 20
_RARE_SAMPLES = re.compile(rb'\n(?!\{"type": ?"(?:system|gpu)")[^\n]+')
_MOST_SAMPLES = 4_000


class LiveSidecar:
    """A sidecar's directory, read as it grows."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tail = Tail(directory / names.RECORDS)
        self._records: dict[type, list[Any]] = defaultdict(list)

    @property
    def ended(self) -> bool:
        """Whether it has written its last record: no process of the command is left."""
        return bool(self._records[SamplerEnd])

    @property
    def newest_ns(self) -> int:
        """When its newest record was made, of CLOCK_MONOTONIC; 0 before it said who it is."""
        systems = self._records[SystemRecord] or self._records[SamplerRecord]
        return systems[-1].clock[0] if systems else 0

    @property
    def anchors(self) -> AnchorSource:
        """What its clock is made from; a host that is looked at while it runs keeps its own time."""
        source = Sidecar(self._directory, self._records, []).anchors
        source.exchanges = []
        return source

    def poll(self) -> bool:
        """Read what was appended to its records; return whether it has said who it is."""
        data, passed = self._tail.read(_MOST_RECORD_BYTES)
        rare = self._tail.search(_RARE_SAMPLES, passed)
        for record in decode_lines(b"\n".join([*rare, data]), SidecarRecord)[0]:
            self._records[type(record)].append(record)
        for kind in (SystemRecord, GpuRecord):
            del self._records[kind][:-_MOST_SAMPLES]
        return bool(self._records[SamplerRecord])

    def sidecar(self) -> Sidecar:
        """The records that are kept, and the newest samples."""
        since_ns = self.newest_ns - SAMPLED_NS
        rows, _ = last_rows(self._directory / names.SAMPLES, SAMPLE_DTYPE, since_ns, _MOST_SAMPLE_BYTES)
        return Sidecar(self._directory, self._records, [], rows)

    def forget(self, before_ns: int) -> None:
        """Give up what was sampled before `before_ns` of CLOCK_MONOTONIC, but for the newest."""
        before_ns = min(before_ns, self.newest_ns - SAMPLED_NS)
        systems, gpus = self._records[SystemRecord], self._records[GpuRecord]
        self._records[SystemRecord] = [record for record in systems if record.clock[0] >= before_ns]
        self._records[GpuRecord] = [record for record in gpus if record.mono_ns >= before_ns]
