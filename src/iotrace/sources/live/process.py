"""One process of a session that runs: its newest records and spans."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from iotrace.session import names
from iotrace.sources.clocks.anchors import AnchorSource
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.live.tail import Tail, last_rows
from iotrace.sources.processes import SPAN_DTYPE
from iotrace.sources.record_files import decode_lines
from iotrace.sources.records import (
    BatchRecord,
    End,
    Exposed,
    Identity,
    Idle,
    IteratorStart,
    PhaseOnDevice,
    Record,
    Round,
    Rows,
    StepMark,
    Text,
    Tick,
    Worker,
)
from iotrace.sources.rows import TIMES, columns_of, made_ns, records_of

_MOST_BYTES = 4 << 20  # of records, at one look
_MOST_RECORDS = 20_000
_MOST_TEXTS = 32_768
_MOST_SPAN_BYTES = 4 << 20
_MOST_PASSES = 64

# When a record was made, by its type: those that come with each batch. The others are rare, and are kept.
_TIMES: dict[type, Any] = {**TIMES, Exposed: None, PhaseOnDevice: None, Idle: None}
_RARE = re.compile(
    rb'\n(?!\{"type":"(?:rows|batch|round|blocked|produced|iterator_end|mark|tick|exposed|phase|idle)")[^\n]+'
)


def _made_ns(record: Record) -> int | None:
    """When the record was made, of CLOCK_MONOTONIC; None where its type does not say."""
    time_of = _TIMES.get(type(record))
    return None if time_of is None else time_of(record)


def _expand(records: Sequence[Record], texts: dict[int, str]) -> list[Record]:
    """Put a record in the place of each row, in the order in which they were made.

    `texts` are the process's so far, those of `records` apart.
    """
    if not any(type(record) is Rows for record in records):
        return list(records)
    texts = {**texts, **{record.id: record.text for record in records if isinstance(record, Text)}}
    timed: list[tuple[int, Record]] = []
    now_ns = 0
    for record in records:
        own = records_of(record.kind, columns_of(record), texts) if isinstance(record, Rows) else [record]
        timed += [(made_ns(one, now_ns), one) for one in own]
        now_ns = max(now_ns, *(time_ns for time_ns, _ in timed[-len(own) :])) if own else now_ns
    timed.sort(key=lambda each: each[0])
    return [record for _, record in timed]


class LiveProcess:
    """A process's directory, read as it grows.

    `whole` until older records were given up. `newest_ns` is when the newest record was made, of
    CLOCK_MONOTONIC: what was made before is on disk.
    """

    def __init__(self, directory: Path, identity: Identity) -> None:
        self._directory = directory
        self.identity = identity
        self.records: list[Record] = []
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
        kinds = (IteratorStart, StepMark, Round, Worker)
        return any(isinstance(record, kinds) for record in self.records)

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
            self.records = [record for record in self.records if type(record) not in _TIMES]
            rare = self._tail.search(_RARE, passed)
            self._add(decode_lines(b"\n".join(rare), Record)[0])
        self._add(decode_lines(data, Record)[0])

    def _add(self, records: list[Record]) -> None:
        for record in _expand(records, self.texts):
            if isinstance(record, Text):
                self.texts[record.id] = record.text
            else:
                self.records.append(record)
        last = next((time_ns for record in reversed(records) if (time_ns := _made_ns(record))), 0)
        self.newest_ns = max(self.newest_ns, last)
        if len(self.texts) > _MOST_TEXTS:
            self.texts = dict(list(self.texts.items())[-_MOST_TEXTS:])
        if len(self.records) > _MOST_RECORDS:
            self._keep_from(len(self.records) - _MOST_RECORDS)

    def forget(self, before_ns: int) -> None:
        """Give up the frequent records made before `before_ns` of CLOCK_MONOTONIC."""
        times = (_made_ns(record) for record in self.records)
        newer = (number for number, made_ns in enumerate(times) if (made_ns or 0) >= before_ns)
        self._keep_from(next(newer, len(self.records)))

    def _keep_from(self, first: int) -> None:
        before, kept = self.records[:first], self.records[first:]
        self.whole = self.whole and not any(type(record) in _TIMES for record in before)
        used = {record.iterator for record in kept if isinstance(record, BatchRecord)}
        starts = [record for record in before if isinstance(record, IteratorStart)]
        used |= {start.iterator for start in starts[-_MOST_PASSES:]}
        rare = [record for record in before if type(record) not in _TIMES]
        self.records = [
            *(each for each in rare if not isinstance(each, IteratorStart) or each.iterator in used),
            *kept,
        ]

    def spans(self, clock: Clock, since_ns: int) -> tuple[npt.NDArray[Any], int]:
        """Read the spans that ended since `since_ns`, in the session's time; from when on all are known."""
        rows, reached = last_rows(
            self._directory / names.SPANS, SPAN_DTYPE, since_ns - clock.offset_ns, _MOST_SPAN_BYTES
        )
        rows["start_ns"] = clock.times_to_session_ns(rows["start_ns"])
        known = reached or not len(rows)
        return rows, since_ns if known else int(rows["start_ns"][0] + rows["duration_ns"][0])
