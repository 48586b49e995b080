"""Batches of one source on their way into the result: numbers, times, arrows; and rows for the lanes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec import UNSET, Raw

from iotrace.merge.affine import ClockMap
from iotrace.merge.arrows import Arrows
from iotrace.merge.events import ASYNC, FLOWS, NAMING, Batch, Event
from iotrace.merge.spill import BEGIN, ELSEWHERE, END, FLOW, MARK, SLICE, Spill
from iotrace.merge.tracks import ThreadTrack, Tracks

_KINDS = {
    **dict.fromkeys(FLOWS, FLOW),
    "B": BEGIN,
    "E": END,
    **dict.fromkeys("iIR", MARK),
}
_EXACT_NS = 1 << 53
_HASHED = 1 << 52
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Selection:
    """What of a source is wanted: half-open windows in ns of the merged clock, categories left out."""

    windows: tuple[tuple[int, int], ...] = ()
    dropped: frozenset[str] = frozenset()

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return not self.windows and not self.dropped


class Sink(Protocol):
    """Takes events with their final numbers, and says where it put each: growing numbers, and sizes."""

    needs_all_rows: bool

    def write(
        self, events: list[Event], extra: dict[int, dict[str, Any]], starts: Any, kinds: Any
    ) -> tuple[Any, Any]: ...


@dataclass
class Rewriter:
    """Turns batches of one source into events of the result.

    `clock` leads from the source's stamps to the merged clock, `base_ns` is where the result's times begin.
    """

    tracks: Tracks
    sink: Sink
    spill: Spill
    arrows: Arrows
    clock: ClockMap
    base_ns: int
    selection: Selection
    read: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    mended: Counter[str] = field(default_factory=Counter)
    first_ns: int | None = None
    last_ns: int | None = None
    _met: dict[tuple[Any, Any], ThreadTrack] = field(default_factory=dict)

    def take(self, batch: Batch) -> None:
        """Rewrite and pass on one batch."""
        events, extra = batch.events, batch.extra
        starts = self.clock.times(batch.start_ns)
        durations = batch.duration_ns
        if (durations < 0).any():
            self.mended["negative durations, shown as 0"] += int((durations < 0).sum())
            durations = np.maximum(durations, 0)
        durations = self.clock.durations(batch.start_ns, durations)
        if not self.selection.everything:
            self.read.update([event.ph for event in events])
            events, starts, durations, extra = self._select(events, starts, durations, extra)
        relative = starts - self.base_ns
        threads: list[int] = []
        special: list[int] = []
        consumed: list[int] = []
        met = self._met
        sources, own, limit = self.tracks.sources, self.tracks.place, self._arithmetic
        flows: list[tuple[int, int]] = []  # places and ids of what starts or ends an arrow
        for place, (event, start_us, duration_us) in enumerate(
            zip(events, _microseconds(relative), _microseconds(durations), strict=True)
        ):
            try:
                thread = met[event.pid, event.tid]
            except KeyError:
                thread = met[event.pid, event.tid] = self.tracks.thread(event.pid, event.tid)
            event.ts = start_us
            if event.ph == "X":
                if event.dur is UNSET:
                    self.mended["slices without a duration, shown as 0 long"] += 1
                event.dur = duration_us
            elif event.ph in FLOWS:
                if event.ph != "s":
                    event.bp = "e"  # without it Perfetto ends the arrow at the next slice
                number = event.id
                if type(number) is int and 0 <= number < limit:
                    event.id = number = number * sources + own
                else:
                    event.id = number = self._identify(0 if number is UNSET else number)
                if event.ph != "t":
                    flows.append((place, number))
                special.append(place)
            else:
                if event.ph == "M" and event.name in NAMING:
                    self._name(event)
                    consumed.append(place)
                elif event.ph == "B" or event.ph == "E":
                    thread = self.tracks.thread(event.pid, event.tid, stacked=True)
                elif event.dur is not UNSET:
                    event.dur = duration_us
                special.append(place)
            event.pid = thread.pid
            event.tid = thread.tid
            threads.append(thread.index)
        kinds = np.zeros(len(events), np.int32)
        special_phases = [events[place].ph for place in special]
        if special:
            kinds[special] = [_KINDS.get(phase, ELSEWHERE) for phase in special_phases]
            for place in np.flatnonzero(kinds >= MARK).tolist():
                kinds[place] = self._special(events[place])
        if flows:
            ends = [events[place].ph == "f" for place, _ in flows]
            places = [place for place, _ in flows]
            self.arrows.add([number for _, number in flows], starts[places], ends)
        if batch.may_bind:
            for event in events:
                self._rebind(event)
        self._clamp(events, relative)
        if consumed:
            gone = set(consumed)
            kept = np.ones(len(events), np.bool_)
            kept[consumed] = False
            extra = _renumbered(extra, np.cumsum(kept) - 1, gone)
            events = [event for place, event in enumerate(events) if place not in gone]
            threads_kept = np.array(threads, np.int64)[kept]
            starts, durations, kinds = starts[kept], durations[kept], kinds[kept]
        else:
            threads_kept = np.array(threads, np.int64)
        phases = Counter(special_phases)
        phases["X"] += len(threads) - len(special)
        self.written.update(phases)
        self.written["M"] -= len(consumed)
        if self.selection.everything:
            self.read.update(phases)
        self._pass_on(events, extra, threads_kept, starts, durations, kinds)

    def _pass_on(
        self,
        events: list[Event],
        extra: dict[int, dict[str, Any]],
        threads: Any,
        starts: Any,
        durations: Any,
        kinds: Any,
    ) -> None:
        if not events:
            return
        for index in np.unique(threads[kinds < ELSEWHERE]).tolist():
            self.tracks.threads[index].used = True
        timed = kinds < ELSEWHERE
        if timed.any():
            self.first_ns = _least(self.first_ns, int(starts[timed].min()))
            self.last_ns = max(self.last_ns or 0, int((starts + durations)[timed].max()))
        ordinals, sizes = self.sink.write(events, extra, starts, kinds)
        ends = starts + np.where(kinds == SLICE, durations, 0)
        if not self.sink.needs_all_rows:
            starts, ends = self._as_seen(starts, ends)
        wanted = kinds <= (MARK if self.sink.needs_all_rows else FLOW)
        self.spill.add(*(column[wanted] for column in (threads, starts, ends, ordinals, kinds, sizes)))

    def _as_seen(self, starts: Any, ends: Any) -> tuple[Any, Any]:
        """The times that Perfetto will read: doubles of us, which are coarse far from the base."""
        relative = starts - self.base_ns
        if int(np.abs(relative).max()) < _EXACT_NS:
            return starts, ends
        doubles = (relative.astype(np.longdouble) / 1000).astype(np.float64)
        whole = doubles.astype(np.int64)  # whole us it multiplies as integers
        seen = np.where(doubles == whole, whole * 1000, np.rint(doubles * 1000).astype(np.int64))
        seen += self.base_ns
        return seen, seen + (ends - starts)

    def _select(self, events: list[Event], starts: Any, durations: Any, extra: Any) -> Any:
        wanted = np.ones(len(events), np.bool_)
        if self.selection.windows:
            ends = starts + durations
            wanted[:] = False
            for first, last in self.selection.windows:
                inside = (starts < last) & ((ends > first) | ((starts >= first) & (durations == 0)))
                wanted |= inside
        if self.selection.dropped:
            dropped = self.selection.dropped
            wanted &= [event.cat is UNSET or event.cat.lower() not in dropped for event in events]
        wanted |= [event.ph == "M" for event in events]
        gone = set(np.flatnonzero(~wanted).tolist())
        kept = [event for place, event in enumerate(events) if place not in gone]
        return kept, starts[wanted], durations[wanted], _renumbered(extra, np.cumsum(wanted) - 1, gone)

    def _rebind(self, event: Event) -> None:
        """The ids of Chrome's other ways to join events."""
        if event.id2 is not UNSET:
            event.id2 = self._scoped(event.id2)
        if event.bind_id is not UNSET:
            event.bind_id = Raw(str(self._identify(_value(event.bind_id))).encode())

    def _special(self, event: Event) -> int:
        """Renumber what is global in the result; the kind of a row that is no slice's and no arrow's."""
        if event.ph in ASYNC and event.id is not UNSET:
            event.id = self._identify(event.id)
        if event.s == "g" or event.s == "p":
            return ELSEWHERE
        return _KINDS.get(event.ph, ELSEWHERE)

    def _identify(self, raw: Any) -> int:
        """A number of this source's own, the same for the same id: arithmetic, as a table would grow."""
        sources, place = self.tracks.sources, self.tracks.place
        number = raw
        if isinstance(raw, str):
            try:
                number = int(raw, 16)  # as Perfetto reads it
            except ValueError:
                number = -1
        if isinstance(number, int) and 0 <= number < self._arithmetic:
            return number * sources + place
        digest = blake2b(f"{place}:{raw}".encode(errors="replace"), digest_size=6).digest()
        return _HASHED + int.from_bytes(digest, "big")

    @property
    def _arithmetic(self) -> int:
        """Ids below are renumbered by arithmetic and stay below the hashed ones."""
        return _HASHED // self.tracks.sources - 1

    def _scoped(self, raw: Any) -> Raw:
        value = _value(raw)
        if isinstance(value, dict) and "global" in value:
            value = {**value, "global": f"0x{self._identify(value['global']):x}"}
        return Raw(_encode(value))

    def _name(self, event: Event) -> None:
        args = _value(event.args)
        if not isinstance(args, dict):
            return
        process = self.tracks.process(event.pid)
        thread = self.tracks.thread(event.pid, event.tid)
        if event.name == "process_name":
            process.name = str(args.get("name", "")).strip() or process.name
        elif event.name == "process_labels":
            process.labels = str(args.get("labels", "")).strip() or process.labels
        elif event.name == "thread_name":
            thread.name = str(args.get("name", "")).strip() or thread.name
        elif isinstance(args.get("sort_index"), int):
            if event.name == "process_sort_index":
                process.sort_index = args["sort_index"]
            else:
                thread.sort_index = args["sort_index"]

    def _clamp(self, events: list[Event], relative: Any) -> None:
        """Perfetto drops what lies before its zero: such times are damage, and are drawn at the zero."""
        for place in np.flatnonzero(relative < 0).tolist():
            if events[place].ph != "M":
                self.mended["times more than a day before the others', shown at the start"] += 1
            events[place].ts = 0.0


def _microseconds(times_ns: Any) -> list[Any]:
    """The times as numbers that say the ns: doubles, and text where a double cannot hold them."""
    if not len(times_ns) or int(np.abs(times_ns).max()) < _EXACT_NS:
        return (times_ns / 1000).tolist()  # type: ignore[no-any-return]
    return [
        Raw(b"%s%d.%03d" % (b"-" if time < 0 else b"", *divmod(abs(time), 1000)))
        for time in times_ns.tolist()
    ]


def _renumbered(extra: dict[int, Any], places: Any, gone: set[int]) -> dict[int, Any]:
    return {int(places[place]): item for place, item in extra.items() if place not in gone}


def _value(raw: Any) -> Any:
    if raw is UNSET:
        return None
    try:
        return _decode_any(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
