"""dftracer's logs as batches of Chrome events, hashes resolved from a pool over all inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import UNSET, Raw

from iotrace.sources.chrome.batch import EventBatch
from iotrace.sources.chrome.event import Event, encode_number
from iotrace.sources.dftracer.lines import Line, LineBatch, LineReader, phase_of, spelled_out


class LogReader:
    """Reads one log; `pool` holds the names behind the hashes."""

    def __init__(self, pool: Mapping[str, str]) -> None:
        self._reader = LineReader()
        self._pool = pool

    @property
    def problems(self) -> list[str]:
        """What was lost, once all batches were read."""
        return self._reader.problems

    @property
    def lost_events(self) -> int:
        """How many lines could not be read."""
        return self._reader.lost_events

    def batches(self, blocks: Iterable[bytes]) -> Iterator[EventBatch]:
        """Yield the events of the log, in order."""
        for batch in self._reader.read(blocks):
            yield self._events(batch)

    def _events(self, batch: LineBatch) -> EventBatch:
        events = [self._event(line) for line in batch.lines]
        may_bind = bool(batch.extra)
        return EventBatch(events, batch.start_ns, batch.duration_ns, batch.extra, may_bind)

    def _event(self, line: Line) -> Event:
        event = Event(ph=phase_of(line), name=line.name, cat=line.cat, pid=line.pid, tid=line.tid)
        if line.dur is not UNSET:
            event.dur = 0
        # Chrome's format has no key for a type, and another meaning for an id: both become arguments.
        args: dict[str, Any] = {}
        if line.id is not UNSET:
            args["id"] = line.id
        if line.type is not UNSET:
            args["type"] = line.type
        if line.args is not UNSET:
            args |= line.args
        event.args = Raw(encode_number(spelled_out(args, self._pool)))
        return event
