"""Batches: events of one source on their way through the rewriter, decoded or as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Raw

from iotrace.sources.chrome.event import FLOWS, Event, Times, encode_number

Identity = Any  # of a process or a thread as its source writes it: int, str or UNSET
Edit = tuple[int, str, bytes]  # a row, `id2` or `bind_id`, and its new value as JSON

NO_ID, OTHER_ID = -1, -2  # of `ids`: the event has none; it has one that is no number below 2^53
_EXACT_NS = 1 << 53
_encoder = msgspec.json.Encoder(decimal_format="number")
_decode_any = msgspec.json.Decoder().decode


@dataclass
class Columns:
    """What becomes of each event of a batch. Times in ns: `start_ns` of the merged clock, `relative_ns` since
    the result's base. `duration_ns` and `ids` are negative where the event gets none that changes."""

    start_ns: Times
    relative_ns: Times
    duration_ns: Times
    pids: Times
    tids: Times
    ids: Times
    kinds: npt.NDArray[np.int32]  # of `spill`
    edits: list[Edit]

    def between(self, first: int, last: int) -> Columns:
        """Those of some rows, from `first` up to `last`."""
        edits = [(row - first, key, value) for row, key, value in self.edits if first <= row < last]
        return Columns(
            self.start_ns[first:last],
            self.relative_ns[first:last],
            self.duration_ns[first:last],
            self.pids[first:last],
            self.tids[first:last],
            self.ids[first:last],
            self.kinds[first:last],
            edits,
        )


class Batch(Protocol):
    """Events in the order of their file, as columns; times are what the source's own clock says."""

    tracks: list[tuple[Identity, Identity]]  # the (pid, tid) pairs that occur
    may_bind: bool  # whether an event may have `id2` or `bind_id`

    def __len__(self) -> int: ...

    @property
    def start_ns(self) -> Times: ...

    @property
    def duration_ns(self) -> Times: ...

    @property
    def phases(self) -> Any:
        """The letters of `ph` as numbers, 0 where it is no single one."""

    @property
    def scopes(self) -> Any:
        """The letters of `s` as numbers, 0 where there is none."""

    @property
    def has_duration(self) -> Any: ...

    @property
    def track(self) -> Any:
        """The place in `tracks` of each event."""

    @property
    def ids(self) -> Times:
        """The ids that are numbers, or hexadecimal ones in quotes; else NO_ID or OTHER_ID."""

    @property
    def families(self) -> Any:
        """A number for the category and name of what starts, continues or ends an arrow."""

    @property
    def to_next(self) -> Any:
        """A mask of the arrows' ends that mean the slice that begins next: without `bp`."""

    def value(self, row: int, key: str) -> Any:
        """A value, decoded; UNSET where the event lacks the key."""

    def select(self, wanted: Any) -> Batch:
        """The events of a mask."""

    def lines(self, columns: Columns) -> Any:
        """The events as lines of JSON that end in a comma, with what the columns say."""


@dataclass
class EventBatch:
    """Decoded events; `extra` holds the keys that `Event` does not know, by place."""

    events: list[Event]
    start_ns: Times
    duration_ns: Times
    extra: dict[int, dict[str, Any]] = field(default_factory=dict)
    may_bind: bool = True

    def __post_init__(self) -> None:
        places: dict[tuple[Identity, Identity], int] = {}
        self.track = np.array(
            [places.setdefault((event.pid, event.tid), len(places)) for event in self.events], np.int64
        )
        self.tracks = list(places)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def phases(self) -> Any:
        return _letters([event.ph for event in self.events])

    @property
    def scopes(self) -> Any:
        return _letters([event.s for event in self.events])

    @property
    def has_duration(self) -> Any:
        return np.array([event.dur is not UNSET for event in self.events], np.bool_)

    @property
    def ids(self) -> Times:
        return np.array([_number(event.id) for event in self.events], np.int64)

    @property
    def families(self) -> Any:
        return np.array(
            [hash((event.cat, event.name)) if event.ph in FLOWS else 0 for event in self.events], np.int64
        )

    @property
    def to_next(self) -> Any:
        return np.array([event.ph == "f" and event.bp != "e" for event in self.events], np.bool_)

    def value(self, row: int, key: str) -> Any:
        found = getattr(self.events[row], key)
        if not isinstance(found, Raw):
            return found
        try:
            return _decode_any(found)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def select(self, wanted: Any) -> EventBatch:
        places = np.cumsum(wanted) - 1
        return EventBatch(
            [event for event, kept in zip(self.events, wanted.tolist(), strict=True) if kept],
            self.start_ns[wanted],
            self.duration_ns[wanted],
            {int(places[place]): item for place, item in self.extra.items() if wanted[place]},
            self.may_bind,
        )

    def number(self, columns: Columns) -> None:
        """Give the events the columns' numbers."""
        for event, pid, tid, number in zip(
            self.events, columns.pids.tolist(), columns.tids.tolist(), columns.ids.tolist(), strict=True
        ):
            event.pid = pid
            event.tid = tid
            if number >= 0:
                event.id = number
            if event.ph == "t" or event.ph == "f":
                event.bp = "e"  # the sink takes it from those that mean the next slice
        for row, key, value in columns.edits:
            setattr(self.events[row], key, Raw(value))

    def lines(self, columns: Columns) -> bytes:
        self.number(columns)
        for event, start_us, duration_us, duration_ns in zip(
            self.events,
            _microseconds(columns.relative_ns),
            _microseconds(columns.duration_ns),
            columns.duration_ns.tolist(),
            strict=True,
        ):
            event.ts = start_us
            if duration_ns >= 0:
                event.dur = duration_us
        try:
            data = _encoder.encode_lines(self.events).replace(b"\n", b",\n")
            return _with(data, self.extra) if self.extra else data
        except (UnicodeEncodeError, msgspec.EncodeError):  # an odd string that Python's parser let through
            return b"".join(_encode_alone(event, self.extra.get(i)) for i, event in enumerate(self.events))


def _letters(texts: list[Any]) -> Any:
    joined = "".join([text if text is not UNSET and len(text) == 1 else "\0" for text in texts])
    return np.frombuffer(joined.encode("latin-1", "replace"), np.uint8)


def _number(value: Any) -> int:
    if type(value) is int:
        return value if 0 <= value < _EXACT_NS else OTHER_ID
    return NO_ID if value is UNSET else OTHER_ID


def _microseconds(times_ns: Times) -> list[Any]:
    """The times as numbers that say the ns: doubles, and text where a double cannot hold them."""
    if not len(times_ns) or int(np.abs(times_ns).max()) < _EXACT_NS:
        return (times_ns / 1000).tolist()  # type: ignore[no-any-return]
    return [
        Raw(b"%s%d.%03d" % (b"-" if time < 0 else b"", *divmod(abs(time), 1000)))
        for time in times_ns.tolist()
    ]


def _with(data: bytes, extra: dict[int, dict[str, Any]]) -> bytes:
    lines = data.split(b"\n")
    for place, item in extra.items():
        lines[place] = lines[place][:-2] + b"," + encode_number(item)[1:] + b","
    return b"\n".join(lines)


def _encode_alone(event: Event, extra: dict[str, Any] | None) -> bytes:
    for key in ("ph", "name", "cat", "bp", "s", "id"):
        text = getattr(event, key)
        if isinstance(text, str):
            setattr(event, key, text.encode(errors="backslashreplace").decode())
    data = _encoder.encode(event)
    if extra:
        try:
            data = data[:-1] + b"," + encode_number(extra)[1:]
        except (UnicodeEncodeError, msgspec.EncodeError):
            data = data[:-1] + b',"extra":' + encode_number(ascii(extra)) + b"}"
    return data + b",\n"
