"""Events of a Chrome trace, decoded or as text, in batches; begin events with their ends."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Raw, UnsetType

Times = npt.NDArray[np.int64]
_Opaque = Raw | UnsetType


class Event(msgspec.Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """The keys that Chrome's format names, in Kineto's order: msgspec decodes twice as fast along it.

    What needs no change stays `Raw`: the bytes of the input. A key that is not listed here fails the fast
    decoder, and the tolerant one keeps it.
    """

    ph: str
    cat: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    pid: int | str | UnsetType = UNSET
    tid: int | str | UnsetType = UNSET
    ts: int | float | UnsetType = UNSET
    dur: int | float | UnsetType = UNSET
    bp: str | UnsetType = UNSET  # before what may hold the same text: writers look for it
    args: _Opaque = UNSET
    id: int | str | UnsetType = UNSET
    s: str | UnsetType = UNSET
    id2: _Opaque = UNSET
    tts: _Opaque = UNSET
    tdur: _Opaque = UNSET
    cname: _Opaque = UNSET
    bind_id: _Opaque = UNSET
    flow_in: _Opaque = UNSET
    flow_out: _Opaque = UNSET
    scope: _Opaque = UNSET
    sf: _Opaque = UNSET
    stack: _Opaque = UNSET
    esf: _Opaque = UNSET
    estack: _Opaque = UNSET
    v: _Opaque = UNSET


KEYS = frozenset(Event.__struct_fields__)
OPAQUE = KEYS - {"ph", "pid", "tid", "ts", "dur", "name", "cat", "id", "bp", "s"}

# What counts as what, for the balance of counts in and out.
KINDS = {
    **dict.fromkeys("XB", "slices"),
    "E": "slice ends",
    **dict.fromkeys("iIR", "instants"),
    "C": "counters",
    **dict.fromkeys("stf", "flows"),
    **dict.fromkeys("bneSTFp", "async"),
    "M": "metadata",
}
FLOWS = frozenset("stf")
ASYNC = frozenset("bneSTFp")
# The metadata that Perfetto reads: consumed, and written again for the merged processes and threads.
NAMING = frozenset(
    ["process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index"]
)

encode_number = msgspec.json.Encoder(decimal_format="number").encode

# Beyond, a double of us and its thousandfold err by half a ns together: the digits are read from the text.
_EXACT_US = float(2**42)
FARTHEST_NS = 2**62


def us_to_ns(value: Any) -> int:
    """A time in us, however it was written, in ns; ValueError where it is no number that fits."""
    try:
        if isinstance(value, float) and abs(value) < _EXACT_US:
            return round(value * 1000)
        number: int | Decimal = value if isinstance(value, int) else Decimal(str(value))
        within = -FARTHEST_NS < number < FARTHEST_NS  # else 1e999999 would be written out, digit by digit
        exact = round(number * 1000) if within else FARTHEST_NS
    except (ArithmeticError, ValueError, TypeError) as error:
        raise ValueError(f"no time: {value!r}"[:80]) from error
    if abs(exact) >= FARTHEST_NS:
        raise ValueError(f"no time: {value!r}"[:80])
    return exact


# Up to about 18 minutes doubles of us hold ps; profilers that write them begin at zero.
_MOST_PS_US = 1 << 30


def rests_ps(values: npt.NDArray[np.float64]) -> Times:
    """What is lost when times in us become whole ns; 0 where doubles are too coarse."""
    ns = values * 1000
    rests = np.rint((ns - np.rint(ns)) * 1000)
    return np.where(np.abs(values) < _MOST_PS_US, rests, 0).astype(np.int64)


def carried(ends_ns: Any, starts_ps: Any, durations_ps: Any) -> Any:
    """What durations get so that ends are rounded, not starts and durations apart: slices that nest in ps,
    as XLA writes them, then nest in ns. `ends_ns`: sums of rounded times; the others: what rounding lost."""
    rests = starts_ps + durations_ps
    tie = np.abs(rests) == 500
    carry = np.sign(rests) * np.where(tie, ends_ns & 1, np.abs(rests) > 500)
    return np.where(starts_ps == 0, 0, carry)


def fits_doubles(values: npt.NDArray[np.float64]) -> bool:
    """Whether doubles of us hold these times to the ns."""
    return bool(np.all(np.abs(values) < _EXACT_US))


def pair(
    tracks: Sequence[Hashable], times: Sequence[int], is_end: Sequence[bool]
) -> tuple[list[int], list[int | None]]:
    """Pair begins and ends of each track as calls nest: an end ends what began last.

    The arguments have an entry per event in the order of their file, which decides between equal times.

    Returns:
        The indices of all begins in order of time, and of their ends; None where a begin has no end. An end
        without a begin is in neither.
    """
    order = sorted(range(len(times)), key=times.__getitem__)
    open_begins: dict[Hashable, list[int]] = {}
    begins: list[int] = []
    ends: list[int | None] = []
    for event in order:
        stack = open_begins.setdefault(tracks[event], [])
        if not is_end[event]:
            stack.append(len(begins))
            begins.append(event)
            ends.append(None)
        elif stack:
            ends[stack.pop()] = event
    return begins, ends


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
    def of(cls, rows: Iterable[tuple[Event, int, int, dict[str, Any]]]) -> EventBatch:
        """A batch of events, each with its start and duration in ns and the keys that `Event` lacks."""
        events, starts, durations, extra = list(zip(*rows, strict=True)) or [(), (), (), ()]
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
        value = getattr(self.events[row], key)
        if not isinstance(value, Raw):
            return value
        try:
            return _decode_any(value)
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
