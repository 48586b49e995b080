"""One process of a session that runs: its newest records and spans."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace.session import names
from iotrace.sources.clocks.anchors import AnchorSource
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.live.tail import Tail, last_rows
from iotrace.sources.processes import SPAN_DTYPE
from iotrace.sources.record_files import decode_lines
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
from iotrace.sources.rows import DTYPES, TIME_FIELDS, Columns, divided, joined, line_ns

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
            kind: rows[rows[field] >= before_ns]
            for kind, rows in self.arrays.items()
            if (field := TIME_FIELDS[kind]) is not None
        }
        self.whole = self.whole and not any(old) and all(len(kept[of]) == len(self.arrays[of]) for of in kept)
        batches = kept.get(names.BATCH_ROW, np.empty(0, DTYPES[names.BATCH_ROW]))
        exposed = self.arrays.get(names.EXPOSED_ROW)
        if exposed is not None:  # one of a batch at most, and recorded after it
            kept[names.EXPOSED_ROW] = exposed[max(0, len(exposed) - len(batches)) :]
        self.arrays = kept
        starts = [record for record in self.records if isinstance(record, IteratorStart)]
        earlier = [start for start in starts if start.mono_ns < before_ns]
        forgotten = {start.iterator for start in earlier[:-_MOST_PASSES]} - {*batches["iterator"].tolist()}
        self.records = [
            record
            for record, is_old in zip(self.records, old, strict=True)
            if not is_old and not (isinstance(record, IteratorStart) and record.iterator in forgotten)
        ]

    def spans(self, clock: Clock, since_ns: int) -> tuple[npt.NDArray[Any], int]:
        """Read the spans that ended since `since_ns`, in the session's time; from when on all are known."""
        rows, reached = last_rows(
            self._directory / names.SPANS, SPAN_DTYPE, since_ns - clock.offset_ns, _MOST_SPAN_BYTES
        )
        rows["start_ns"] = clock.times_to_session_ns(rows["start_ns"])
        known = reached or not len(rows)
        return rows, since_ns if known else int(rows["start_ns"][0] + rows["duration_ns"][0])
