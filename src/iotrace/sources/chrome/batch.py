"""Batches: events of one source decoded or as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec import UNSET, Raw

from iotrace.sources.chrome.event import FLOWS, Event, Times

Identity = Any  # of a process or a thread as its source writes it: int, str or UNSET

NO_ID, OTHER_ID = -1, -2  # of `ids`: the event has none; it has one that is no number below 2^53
_EXACT_NS = 1 << 53
_decode_any = msgspec.json.Decoder().decode


class Batch(Protocol):
    """Events in the order of their file, as columns; times are what the source's own clock says."""

    tracks: list[tuple[Identity, Identity]]  # the (pid, tid) pairs that occur
    may_bind: bool  # whether an event may have `id2` or `bind_id`
    start_ns: Times
    duration_ns: Times
    phases: Any  # the letters of `ph` as numbers, 0 where it is no single one
    scopes: Any  # the letters of `s` as numbers, 0 where there is none
    has_duration: Any
    track: Any  # the index in `tracks` of each event
    ids: Times  # the ids that are numbers, or hexadecimal ones in quotes; else NO_ID or OTHER_ID
    families: Any  # a number for the category and name of what starts, continues or ends a flow
    to_next: Any  # a mask of the flows' ends that mean the slice that begins next: without `bp`

    def __len__(self) -> int: ...

    def value(self, row: int, key: str) -> Any:
        """A value, decoded; UNSET where the event lacks the key."""

    def select(self, wanted: Any) -> Batch:
        """The events of a mask."""


def column(of: Callable[[Any], Any]) -> Any:
    """A column that a batch computes once, when it is first asked for."""
    return cached_property(of)


def _each(of: Callable[[Event], Any], dtype: Any) -> Any:
    """A column of what `of` says of each event."""
    return column(lambda batch: np.array([of(event) for event in batch.events], dtype))


class EventBatch(msgspec.Struct, dict=True):
    """Decoded events; `extra` holds the keys that `Event` does not know, by index."""

    events: list[Event]
    start_ns: Times
    duration_ns: Times
    extra: dict[int, dict[str, Any]] = {}
    may_bind: bool = True

    def __post_init__(self) -> None:
        numbers: dict[tuple[Identity, Identity], int] = {}
        self.track = np.array(
            [numbers.setdefault((event.pid, event.tid), len(numbers)) for event in self.events], np.int64
        )
        self.tracks = list(numbers)

    @classmethod
    def of(cls, found: Iterable[tuple[Event, int, int, dict[str, Any]]]) -> EventBatch:
        """A batch of events, each with its start and duration in ns and the keys that `Event` lacks."""
        events, starts, durations, extra = list(zip(*found, strict=True)) or [(), (), (), ()]
        unknown = {row: keys for row, keys in enumerate(extra) if keys}
        return cls(list(events), np.array(starts, np.int64), np.array(durations, np.int64), unknown)

    def __len__(self) -> int:
        return len(self.events)

    phases = column(lambda batch: _letters([event.ph for event in batch.events]))
    scopes = column(lambda batch: _letters([event.s for event in batch.events]))
    has_duration = _each(lambda event: event.dur is not UNSET, np.bool_)
    ids = _each(lambda event: _number(event.id), np.int64)
    families = _each(lambda event: hash((event.cat, event.name)) if event.ph in FLOWS else 0, np.int64)
    to_next = _each(lambda event: event.ph == "f" and event.bp != "e", np.bool_)

    def value(self, row: int, key: str) -> Any:
        found = getattr(self.events[row], key)
        if not isinstance(found, Raw):
            return found
        try:
            return _decode_any(found)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def select(self, wanted: Any) -> EventBatch:
        index = np.cumsum(wanted) - 1
        return EventBatch(
            [event for event, kept in zip(self.events, wanted.tolist(), strict=True) if kept],
            self.start_ns[wanted],
            self.duration_ns[wanted],
            {int(index[row]): item for row, item in self.extra.items() if wanted[row]},
            self.may_bind,
        )


def _letters(texts: list[Any]) -> Any:
    joined = "".join([text if text is not UNSET and len(text) == 1 else "\0" for text in texts])
    return np.frombuffer(joined.encode("latin-1", "replace"), np.uint8)


def _number(value: Any) -> int:
    if type(value) is int:
        return value if 0 <= value < _EXACT_NS else OTHER_ID
    return NO_ID if value is UNSET else OTHER_ID
