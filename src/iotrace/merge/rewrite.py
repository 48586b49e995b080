"""Batches of one input on their way into the result: numbers, times, flows; and rows for the lanes.

Both ends of every flow, on disk: how many end before they start.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec import UNSET

from iotrace.merge.selection import Selection, categories
from iotrace.sources.byte_stream import Progress, silent
from iotrace.sources.chrome.batch import ASYNC, FLOWS, NAMING, NO_ID, OTHER_ID, Batch, Times
from iotrace.sources.clocks.session_clock import ClockMap
from iotrace.timeline.writers.columns import Columns, Edit
from iotrace.timeline.writers.id_map import Tracks
from iotrace.timeline.writers.lanes import BEGIN, ELSEWHERE, END, FLOW, FLOW_NEXT, INSTANT, SLICE, Spill

_ROWS_AT_ONCE = 1 << 16
_AT_ONCE = 1 << 19
_ODD = 0x9E3779B97F4A7C1  # spreads the numbers, as a family's hash may be small
_NEVER = np.iinfo(np.int64).max


class FlowCheck:
    """Collects (id, time) of starts and ends. A kernel's flow starts at its launch."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._count = 0

    def add(self, numbers: Any, families: Any, times_ns: Any, are_ends: Any) -> None:
        """Add starts of flows, and their stops and ends; its number and its family identify a flow."""
        keys = numbers * _ODD ^ families
        rows = np.column_stack([keys, times_ns, are_ends.astype(np.int64)])
        self._count += len(rows)
        self._file.write(np.ascontiguousarray(rows, np.int64).data)

    def backwards(self) -> int:
        """How many flows, among those whose id is used once, have an end before their start."""
        buckets = 1 + self._count // _AT_ONCE
        return sum(_backwards(self._read_bucket(bucket, buckets)) for bucket in range(buckets))

    def _read_bucket(self, bucket: int, buckets: int) -> Any:
        self._file.seek(0)
        pieces = []
        while data := self._file.read(_ROWS_AT_ONCE * 24):
            rows = np.frombuffer(data, np.int64).reshape(-1, 3)
            pieces.append(rows[rows[:, 0] % buckets == bucket] if buckets > 1 else rows)
        return np.concatenate(pieces) if pieces else np.empty((0, 3), np.int64)

    def close(self) -> None:
        """Give the disk space back (the file has to be removed by its owner)."""
        self._file.close()


def _backwards(rows: Any) -> int:
    if not len(rows):
        return 0
    keys, times, is_end = rows[np.argsort(rows[:, 0])].T
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    starts = np.add.reduceat(1 - is_end, first)
    earliest = np.minimum.reduceat(np.where(is_end == 1, times, _NEVER), first)
    started = np.minimum.reduceat(np.where(is_end == 0, times, _NEVER), first)
    return int(((starts == 1) & (earliest < started)).sum())


def _by_letter(kinds: dict[str, int], default: int) -> Any:
    table = np.full(256, default, np.int32)
    for letter, kind in kinds.items():
        table[ord(letter)] = kind
    return table


_KINDS = _by_letter(
    {"X": SLICE, **dict.fromkeys(FLOWS, FLOW), "B": BEGIN, "E": END, **dict.fromkeys("iIR", INSTANT)},
    ELSEWHERE,
)
_RENUMBERED = _by_letter(dict.fromkeys([*FLOWS, *ASYNC], 1), 0).astype(np.bool_)
_IS_WIDE = _by_letter({"g": 1, "p": 1}, 0).astype(np.bool_)  # scopes of instants on no thread's track
_EXACT_NS = 1 << 53
_HASHED = 1 << 52
_encode = msgspec.json.Encoder().encode


class Sink(Protocol):
    """Takes events with their final numbers, and returns where it put each: growing numbers, and sizes."""

    needs_all_rows: bool
    processless_scope: int  # of instants that are on no process's track, as a letter

    def write(self, batch: Batch, columns: Columns) -> tuple[Any, Any]: ...

    def finish(
        self, spill: Spill, tracks: Tracks, delete_unbound: bool, progress: Progress = silent
    ) -> tuple[int, int]: ...


@dataclass
class Rewriter:
    """Turns batches of one input into events of the result.

    `clock` leads from the input's stamps to the merged clock, `base_ns` is where the result's times begin.
    """

    tracks: Tracks
    sink: Sink
    spill: Spill
    flows: FlowCheck
    clock: ClockMap
    base_ns: int
    selection: Selection
    chosen_pairs: Times | None = None  # numbers of begins and ends; None where the input has none
    read: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    mended: Counter[str] = field(default_factory=Counter)
    categories: set[str] = field(default_factory=set)  # those met, where some are to be left out
    first_ns: int | None = None
    last_ns: int | None = None
    _seen: int = 0  # events of the input so far

    def take(self, batch: Batch) -> None:
        """Rewrite and pass on one batch."""
        counted = _counted(batch.phases)
        self.read.update(counted)
        starts = self.clock.times(batch.start_ns)
        durations = batch.duration_ns
        if len(durations) and durations.min() < 0:
            self.mended["negative durations, shown as 0"] += int((durations < 0).sum())
            durations = np.maximum(durations, 0)
        durations = self.clock.durations(batch.start_ns, durations)
        wanted = self._wanted(batch, starts, durations)
        if wanted is not None:
            batch, starts, durations = batch.select(wanted), starts[wanted], durations[wanted]
            counted = _counted(batch.phases)
        if not len(batch):
            return
        phases = batch.phases
        self.written.update(counted)
        kinds = _KINDS.take(phases)
        is_instant = kinds == INSTANT
        if is_instant.any():
            kinds[is_instant & _IS_WIDE.take(batch.scopes)] = ELSEWHERE
        is_flow = kinds == FLOW
        ids = self._ids(batch, _RENUMBERED.take(phases), is_flow)
        if is_flow.any():
            families = batch.families[is_flow]
            self.flows.add(ids[is_flow], families, starts[is_flow], phases[is_flow] != ord("s"))
            kinds[batch.to_next] = FLOW_NEXT
        relative = starts - self.base_ns
        if relative.min() < 0:
            # Perfetto drops what lies before its zero: such times are damage, and are drawn at the zero.
            early = int(((relative < 0) & (phases != ord("M"))).sum())
            if early:
                self.mended["times below 0 or a day before the others', shown at the start"] += early
            starts = np.maximum(starts, self.base_ns)
            relative = starts - self.base_ns
        has_duration = batch.has_duration
        is_slice = phases == ord("X")
        if not has_duration[is_slice].all():
            what = "slices without a duration, shown as 0 long"
            self.mended[what] += int((~has_duration[is_slice]).sum())
        edits = self._rebound(batch) if batch.may_bind else []
        threads, pids, tids = self._threads(batch, (kinds == BEGIN) | (kinds == END))
        shown = np.where(has_duration | is_slice, durations, -1)
        self._pass_on(
            batch, threads, durations, Columns(starts, relative, shown, pids, tids, ids, kinds, edits)
        )

    def _pass_on(self, batch: Batch, threads: Times, durations: Times, columns: Columns) -> None:
        kinds, starts = columns.kinds, columns.start_ns
        on_rows = kinds < ELSEWHERE
        self._use(batch, threads, kinds)
        ends = starts + durations
        if on_rows.any():
            shown = slice(None) if on_rows.all() else on_rows
            self.first_ns = _least(self.first_ns, int(starts[shown].min()))
            self.last_ns = max(self.last_ns or 0, int(ends[shown].max()))
        ordinals, sizes = self.sink.write(batch, columns)
        ends = np.where(kinds == SLICE, ends, starts)
        if not self.sink.needs_all_rows:
            starts, ends = self._as_seen(starts, ends)
        wanted = kinds <= (INSTANT if self.sink.needs_all_rows else END)
        rows = self._rows(threads, kinds)
        spilled = (rows, starts, ends, ordinals, kinds, sizes)
        self.spill.add(*(spilled if wanted.all() else (column[wanted] for column in spilled)))

    def _use(self, batch: Batch, threads: Times, kinds: Any) -> None:
        """Note which threads and processes show something; flows show where the slice is that they bind."""
        elsewhere = kinds == ELSEWHERE
        if elsewhere.any():
            alone = elsewhere & (batch.phases != ord("M")) & (batch.scopes != self.sink.processless_scope)
            for index in _distinct(threads[alone]):
                self.tracks.process(self.tracks.threads[index].raw_pid).used = True
        shown = (kinds < ELSEWHERE) & (kinds != FLOW) & (kinds != FLOW_NEXT)
        for index in _distinct(threads[shown]):
            self.tracks.threads[index].used = True

    def _rows(self, threads: Times, kinds: Any) -> Times:
        """The threads to pack the events with: begin and end events bind flows like slices."""
        if not ((kinds == BEGIN) | (kinds == END)).any():
            return threads
        indexes, at = np.unique(threads, return_inverse=True)
        items = [self.tracks.threads[index] for index in indexes.tolist()]
        own = [self.tracks.thread(item.raw_pid, item.raw_tid) if item.stacked else item for item in items]
        return np.array([item.index for item in own], np.int64)[at]

    def _wanted(self, batch: Batch, starts: Times, durations: Times) -> Any:
        """A mask of what goes on, None for all. The names of processes and threads end here."""
        is_metadata = batch.phases == ord("M")
        wanted = None
        if not self.selection.everything:
            wanted = self._selected(batch, starts, durations) | is_metadata
            self._seen += len(batch)
        if is_metadata.any():
            named = [row for row in np.flatnonzero(is_metadata).tolist() if self._name(batch, row)]
            if named:
                wanted = np.ones(len(batch), np.bool_) if wanted is None else wanted
                wanted[named] = False
        return wanted

    def _selected(self, batch: Batch, starts: Times, durations: Times) -> Any:
        wanted = self.selection.in_time(starts, starts + durations)
        if self.selection.dropped:
            texts = [batch.value(row, "cat") for row in range(len(batch))]
            distinct = set(texts)
            self.categories.update(*map(categories, distinct))
            dropped = {text for text in distinct if self.selection.leaves_out(text)}
            wanted &= np.array([text not in dropped for text in texts], np.bool_)
        if self.chosen_pairs is not None:
            paired = np.isin(batch.phases, list(b"BEbe"))
            numbers = np.flatnonzero(paired) + self._seen
            wanted[paired] = np.isin(numbers, self.chosen_pairs, assume_unique=True)
        return wanted

    def _threads(self, batch: Batch, stacked: Any) -> tuple[Times, Times, Times]:
        """The thread of each event, and its numbers in the result. Begin and end events have their own."""
        # A column of the table for each of the batch's tracks, and a second one for its begin and end events.
        kinds = batch.track + len(batch.tracks) * stacked.astype(np.intp)
        table = np.zeros((3, 2 * len(batch.tracks)), np.int64)
        for number in _distinct(kinds):
            is_stacked, track_index = divmod(number, len(batch.tracks))
            thread = self.tracks.thread(*batch.tracks[track_index], bool(is_stacked))
            table[:, number] = thread.index, thread.pid, thread.tid
        return table[0].take(kinds), table[1].take(kinds), table[2].take(kinds)

    def _ids(self, batch: Batch, renumbered: Any, is_flow: Any) -> Times:
        """Numbers of this input's own for what joins events; NO_ID where the event keeps what it has."""
        # A flow without an id is the only one of its input; async events may use `id2`.
        ids = np.where(is_flow & (batch.ids == NO_ID), 0, batch.ids)
        plain = renumbered & (ids >= 0) & (ids < self._arithmetic)
        odd = renumbered & ~plain & (ids != NO_ID)
        ids = np.where(plain, ids * self.tracks.inputs + self.tracks.index, NO_ID)
        for row in np.flatnonzero(odd).tolist():
            ids[row] = self._identify(batch.value(row, "id"))
        return ids

    def _identify(self, raw: Any) -> int:
        """A number of this input's own, the same for the same id: arithmetic, as a table would grow."""
        number = raw
        if isinstance(raw, str):
            try:
                number = int(raw, 16)  # as Perfetto reads it
            except ValueError:
                number = OTHER_ID
        if isinstance(number, int) and 0 <= number < self._arithmetic:
            return number * self.tracks.inputs + self.tracks.index
        text = f"{self.tracks.index}:{raw}"
        digest = blake2b(text.encode(errors="replace"), digest_size=6).digest()
        return _HASHED + int.from_bytes(digest, "big")

    @property
    def _arithmetic(self) -> int:
        """Ids below are renumbered by arithmetic and stay below the hashed ones."""
        return _HASHED // self.tracks.inputs - 1

    def _rebound(self, batch: Batch) -> list[Edit]:
        """New values for the ids of Chrome's other ways to join events."""
        edits: list[Edit] = []
        for row in range(len(batch)):
            value = batch.value(row, "id2")
            if isinstance(value, dict) and value.keys() & {"local", "global"}:
                own = {
                    scope: f"0x{self._identify(value[scope]):x}"
                    for scope in ("local", "global")
                    if scope in value
                }
                edits.append((row, "id2", _encode({**value, **own})))
            value = batch.value(row, "bind_id")
            if value is not UNSET:
                edits.append((row, "bind_id", b"%d" % self._identify(value)))
        return edits

    def _name(self, batch: Batch, row: int) -> bool:
        """Take the name of a process or a thread; return whether the event holds one."""
        kind = batch.value(row, "name")
        if kind not in NAMING:
            return False
        args = batch.value(row, "args")
        if not isinstance(args, dict):
            return True
        pid, tid = batch.value(row, "pid"), batch.value(row, "tid")
        process = self.tracks.process(pid)
        thread = self.tracks.thread(pid, tid)
        if kind == "process_name":
            process.name = str(args.get("name", "")).strip() or process.name
        elif kind == "process_labels":
            process.labels = str(args.get("labels", "")).strip() or process.labels
        elif kind == "thread_name":
            thread.name = str(args.get("name", "")).strip() or thread.name
        elif isinstance(args.get("sort_index"), int):
            if kind == "process_sort_index":
                process.sort_index = args["sort_index"]
            else:
                thread.sort_index = args["sort_index"]
        return True

    def _as_seen(self, starts: Times, ends: Times) -> tuple[Times, Times]:
        """The times that Perfetto will read: doubles of us, which are coarse far from the base."""
        relative = starts - self.base_ns
        if int(relative.max()) < _EXACT_NS:  # none is below 0
            return starts, ends
        doubles = (relative.astype(np.longdouble) / 1000).astype(np.float64)
        whole = doubles.astype(np.int64)  # whole us it multiplies as integers
        seen = np.where(doubles == whole, whole * 1000, np.rint(doubles * 1000).astype(np.int64))
        seen += self.base_ns
        return seen, seen + (ends - starts)


def _counted(phases: Any) -> dict[str, int]:
    """How often each letter occurs; what is no letter of Chrome's counts as `?`."""
    counts = np.bincount(phases, minlength=256)
    return {chr(letter) if letter else "?": int(counts[letter]) for letter in np.flatnonzero(counts)}


def _distinct(numbers: Any) -> list[int]:
    """The distinct ones of small numbers, in order."""
    distinct: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
    return distinct


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
