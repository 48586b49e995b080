"""A session of `iotrace run`, rank by rank, as batches of Chrome events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw

from iotrace.analysis.rank import RankAnalysis
from iotrace.merge.inputs import Source
from iotrace.merge.survey import Survey
from iotrace.session import names
from iotrace.sources.chrome.batch import EventBatch
from iotrace.sources.chrome.event import Event
from iotrace.sources.session import Rank, Session, open_session
from iotrace.timeline.build import build
from iotrace.timeline.model import ProcessTracks, Slice, Timeline

_encode = msgspec.json.Encoder().encode
_AT_ONCE = 20_000
# Files of a session that are its own, not traces that were recorded beside it.
_OWN = {names.MANIFEST, names.OUTCOME, names.FILES, names.PROCESS}


def ranks_of(path: Path) -> list[tuple[str, int, str]]:
    """The session's ranks: their names, numbers and hosts."""
    session = open_session(path)
    return [(rank.name, rank.number, rank.main.host) for rank in session.ranks]


def foreign_traces(path: Path) -> list[Path]:
    """Traces of other profilers that lie in the session, such as those of torch.profiler."""
    found = [item for pattern in ("*.json", "*.json.gz") for item in path.rglob(pattern)]
    return sorted(
        item
        for item in found
        if item.name not in _OWN
        and not item.name.startswith(".")
        and names.OUT not in item.relative_to(path).parts[:-1]
    )


def survey_session(source: Source) -> Survey:
    """Look at a rank of a session."""
    session = open_session(source.path)
    timeline, rank = _timeline_of(session, source.session_rank)
    found = Survey(absolute=True, rank=rank.number, world_size=rank.world_size, host=rank.main.host)
    found.clock_domain = rank.main.clock_domain
    found.bound_ns = max([session.calls.unsure_ns, *(process.clock.bound_ns for process in rank.processes)])
    found.clock = None if rank.main.clock.matches_realtime else rank.main.clock
    found.bytes = sum(item.stat().st_size for item in source.path.rglob("*") if item.is_file())
    found.bytes //= len(session.ranks)
    found.pids = [process.pid for process in rank.processes]
    slices = [item for process in timeline.processes for track in process.tracks for item in track.slices]
    found.first_ns = min((item.start_ns for item in slices), default=None)
    found.last_ns = max((item.end_ns for item in slices), default=None)
    for item in slices:
        if item.category == "step":
            found.steps[int(item.name.split()[-1])] = (item.start_ns, item.end_ns)
    return found


def _timeline_of(session: Session, name: str) -> tuple[Timeline, Rank]:
    """The timeline of the rank called `name`, without torch.profiler's traces: these are merged whole."""
    rank = next(rank for rank in session.ranks if rank.name == name)
    return build(RankAnalysis(session, rank), with_torch=False), rank


def batches_of(source: Source) -> Iterator[EventBatch]:
    """A rank's processes, slices, counters and flows; times in ns of CLOCK_REALTIME."""
    timeline, _ = _timeline_of(open_session(source.path), source.session_rank)
    maker = _Maker()
    threads: dict[Slice, tuple[Any, str]] = {}
    for number, process in enumerate(timeline.processes):
        pid = _pid(process, number)
        maker.metadata(pid, "process_name", {"name": process.name}, UNSET)
        maker.metadata(pid, "process_sort_index", {"sort_index": number}, UNSET)
        for order, track in enumerate(process.tracks):
            maker.metadata(pid, "thread_sort_index", {"sort_index": order}, track.name)
            for item in track.slices:
                threads[item] = (pid, track.name)
                maker.slice(pid, track.name, item)
                if maker.full:
                    yield maker.batch()
        for counter in process.counters:
            for time_ns, value in counter.points:
                args = Raw(_encode({counter.unit: value}))
                maker.add(Event(ph="C", pid=pid, name=counter.name, args=args), time_ns)
            if maker.full:
                yield maker.batch()
    for number, flow in enumerate(timeline.flows):
        last = len(flow.stops) - 1
        for position, (item, time_ns) in enumerate(flow.stops):
            pid, tid = threads[item]
            phase = "s" if position == 0 else "f" if position == last else "t"
            event = Event(ph=phase, pid=pid, tid=tid, name=flow.name, cat=flow.category, id=number, bp="e")
            maker.add(event, time_ns)
        if maker.full:
            yield maker.batch()
    yield maker.batch()


class _Maker:
    """Collects events until they are a batch."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._starts: list[int] = []
        self._durations: list[int] = []

    @property
    def full(self) -> bool:
        return len(self._events) >= _AT_ONCE

    def add(self, event: Event, start_ns: int, duration_ns: int = 0) -> None:
        self._events.append(event)
        self._starts.append(start_ns)
        self._durations.append(duration_ns)

    def slice(self, pid: Any, tid: str, item: Slice) -> None:
        args = Raw(_encode(item.args)) if item.args else UNSET
        event = Event(ph="X", pid=pid, tid=tid, name=item.name, cat=item.category, dur=0, args=args)
        self.add(event, item.start_ns, item.end_ns - item.start_ns)

    def metadata(self, pid: Any, name: str, args: dict[str, Any], tid: Any) -> None:
        self.add(Event(ph="M", pid=pid, tid=tid, name=name, args=Raw(_encode(args))), 0)

    def batch(self) -> EventBatch:
        made = EventBatch(self._events, np.array(self._starts, np.int64), np.array(self._durations, np.int64))
        self._events, self._starts, self._durations = [], [], []
        return made


def _pid(process: ProcessTracks, number: int) -> int | str:
    """The operating system's number, by which traces of the same process are put together."""
    digits = process.labels.removeprefix("pid ")
    return int(digits) if digits.isdigit() else f"process {number}"
