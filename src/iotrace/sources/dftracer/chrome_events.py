"""dftracer's logs as batches of Chrome events, hashes resolved from a pool over all inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import UNSET, Raw

from iotrace.sources.chrome.batch import EventBatch
from iotrace.sources.chrome.event import Event, encode_number
from iotrace.sources.dftracer.lines import Line, LineReader, phase_of, spelled_out


class DftracerReader(LineReader):
    """Reads one log; `pool` holds the names behind the hashes."""

    def __init__(self, pool: Mapping[str, str]) -> None:
        super().__init__()
        self._pool = pool

    def batches(self, blocks: Iterable[bytes]) -> Iterator[EventBatch]:
        """Yield the events of the log, in order."""
        for batch in self.read(blocks):
            events = [self._event(line) for line in batch.lines]
            may_bind = bool(batch.extra)
            yield EventBatch(events, batch.start_ns, batch.duration_ns, batch.extra, may_bind)

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
