"""What is inside of a TrackEvent: name, category and arguments of an event as protobuf fields.

Flows of tracks that are no thread's: the slices themselves hold the numbers of their flows.

Perfetto takes events that bind flows, as Chrome has them, from threads alone. A number in the packets that
begin slices joins these in the order of time.

Colours of Perfetto: it hashes a slice's name to one, or a text next to the name instead.

No trace names a colour, and Perfetto shows that text nowhere but among a slice's arguments. Each was found by
trying numbers after a word until Perfetto's hash of it had the hue that the page has for the same cause.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from iotrace.sources.chrome.batch import OPAQUE, Event, encode_number
from iotrace.timeline.writers.compiled_native import CATEGORIES, LABELS, NAMES, Interned
from iotrace.timeline.writers.descriptors import annotation, data, integer, text
from iotrace.timeline.writers.lanes import BEGIN, END, FLOW, FLOW_NEXT, NEXT, SLICE, STACKED, UNBOUND, Rows

_CORRELATION = 53  # correlation_id_str of a TrackEvent: what Perfetto hashes to a colour
_FAILURE, _TRANSPORT, _WAIT = "failure", "transport", "data wait"  # categories of slices
_HASHED = {
    "read": "read848",
    "decode": "decode34",
    "transform": "transform854",
    "collate": "collate199",
    "sampling": "sampling1150",
    "transport": "transport281",
    "queued": "queued621",
    "startup": "startup1459",
    "failure": "failure1060",
}
_FIELDS = {name: text(_CORRELATION, hashed) for name, hashed in _HASHED.items()}


def colour(category: object, cause: object) -> bytes:
    """Return the field of a TrackEvent that colours a slice; empty where its name may."""
    if category == _WAIT:
        return _FIELDS.get(cause, b"") if isinstance(cause, str) else b""
    return _FIELDS[category] if category in (_FAILURE, _TRANSPORT) else b""


MOST_INTERNED = 200_000  # names that come once each are written where they are used
_LONGEST_REPEATED = 256
_OTHER_OPAQUE = sorted(OPAQUE - {"args", "id2", "bind_id", "flow_in", "flow_out"})  # what joins is `legacy`
_others = attrgetter(*_OTHER_OPAQUE)
_NO_OTHERS = (UNSET,) * len(_OTHER_OPAQUE)

decode = msgspec.json.Decoder().decode


class Bodies:
    """Encodes events; what comes again and again is encoded once."""

    def __init__(self) -> None:
        self.interned = Interned(MOST_INTERNED)
        self._heads: dict[tuple[Any, Any], bytes] = {}
        self._labels: dict[str, bytes] = {}
        self._repeated: dict[tuple[str, str | float], bytes] = {}

    def body(self, event: Event, extra: dict[str, Any] | None) -> bytes:
        """Name, category and arguments as fields of TrackEvent."""
        name: Any = event.name
        if event.ph == "E" and not name:
            name = None  # it ends what began last
        try:
            head = self._heads[name, event.cat]
        except KeyError:
            head = self._head(name, event.cat)
        pieces, cause = [head], None
        if event.args is not UNSET:
            args = decode(event.args)
            if isinstance(args, dict):
                cause = args.get("cause")
                for key, value in args.items():
                    if value is not None:  # Perfetto takes none of JSON's nulls
                        pieces.append(self._annotation(key, value))
            else:
                pieces.append(self._annotation("args", args))
        if _others(event) != _NO_OTHERS:
            for key in _OTHER_OPAQUE:
                value = getattr(event, key)
                if value is not UNSET:
                    pieces.append(self._annotation(key, decode(value)))
        if extra:
            for key, value in extra.items():
                pieces.append(self._annotation(key, decode(encode_number(value))))
        if event.ph == "X" and event.id is not UNSET:
            pieces.append(self._annotation("id", event.id))
        if event.ph == "X" and (hue := colour(event.cat, cause)):
            pieces.append(hue)
        return b"".join(pieces)

    def _head(self, name: Any, category: Any) -> bytes:
        head = b"" if name is None else self._named(NAMES, 10, 23, "" if name is UNSET else name)
        if category is not UNSET and category:
            head += self._named(CATEGORIES, 3, 22, category)
        if len(self._heads) < MOST_INTERNED:
            self._heads[name, category] = head
        return head

    def _annotation(self, key: str, value: Any) -> bytes:
        """The annotation as a field of TrackEvent; texts and fractions come again and again."""
        if type(value) is str or (type(value) is float and value):  # 0.0 is the key of -0.0, too
            encoded = self._repeated.get((key, value))
            if encoded is None:
                encoded = self._encoded(key, value)
                if len(self._repeated) < MOST_INTERNED and len(encoded) < _LONGEST_REPEATED:
                    self._repeated[key, value] = encoded
            return encoded
        return self._encoded(key, value)

    def _encoded(self, key: str, value: Any) -> bytes:
        label = self._labels.get(key)
        if label is None:
            label = self._named(LABELS, 1, 10, key)
            if len(self._labels) < MOST_INTERNED:
                self._labels[key] = label
        return data(4, annotation(label, value))

    def _named(self, kind: int, number_field: int, text_field: int, name: str) -> bytes:
        text = name.encode(errors="backslashreplace")
        number = self.interned.number(kind, text)
        return integer(number_field, number) if number else data(text_field, text)


def legacy(event: Event) -> bytes:
    """The phase and the id, as Perfetto has them from Chrome: the last field of a body."""
    fields = integer(2, ord(event.ph[:1] or "i"))
    if isinstance(event.id, int):
        fields += integer(6, event.id)
    elif event.id2 is not UNSET:
        fields += _scoped(decode(event.id2))
    if event.ph == "b":
        fields += _binding(event)
    if event.bp == "e":
        fields += integer(12, 1)
    return data(6, fields)


def _scoped(own: Any) -> bytes:
    """An id that is the process's or the whole trace's, which the rewriter made hexadecimal."""
    for scope, field in ("local", 10), ("global", 11):
        if isinstance(own, dict) and scope in own:
            return integer(field, int(own[scope], 16))
    return b""


def bound(event: Event) -> bytes:
    """The flows that a slice itself begins or ends (`bind_id`): the last field of its body, if any."""
    fields = _binding(event)
    return data(6, fields) if fields else b""


def _binding(event: Event) -> bytes:
    if event.bind_id is UNSET:
        return b""
    ways = (1, event.flow_in), (2, event.flow_out)
    direction = sum(way for way, value in ways if value is not UNSET and decode(value) is True)
    return integer(8, decode(event.bind_id)) + integer(13, direction) if direction else b""


_PASSES, _ENDS = b"\xf9\x02", b"\x81\x03"  # tags of a TrackEvent's flow_ids and terminating_flow_ids
_Lanes = npt.NDArray[np.int32]


def are_flows(kinds: Any) -> Any:
    """A mask of the rows of flows."""
    return (kinds == FLOW) | (kinds == FLOW_NEXT)


class FlowBinding:
    """Finds the slice of each flow's start, step and end; flows are known by the offsets of their bodies."""

    def __init__(self) -> None:
        self._found: list[tuple[Any, Any, Any]] = []

    def add(self, offsets: Any, ids: Any, phases: Any) -> None:
        """Take flows of the next batch: offsets grow, `phases` are Chrome's letters."""
        if len(offsets):
            self._found.append((offsets, ids, phases))

    def __bool__(self) -> bool:
        return bool(self._found)

    def fields(self, windows: Iterable[tuple[Rows, _Lanes]]) -> list[tuple[int, int, bytes]]:
        """List the bodies of a thread's slices that get more: offset, size, and fields of a TrackEvent."""
        pieces = list(windows)
        rows = np.concatenate([piece for piece, _ in pieces])
        lanes = np.concatenate([placed for _, placed in pieces])
        flows = are_flows(rows["kind"]) & (lanes != UNBOUND)
        bound: list[tuple[Any, Any]] = []
        for lane in np.unique(lanes[flows] & ~NEXT).tolist():
            there = (lanes != UNBOUND) & ((lanes & ~NEXT) == lane)
            bound.append(_bind(rows[there], lanes[there] >= NEXT, lane == STACKED))
        return self._fields(bound)

    def _fields(self, bound: list[tuple[Any, Any]]) -> list[tuple[int, int, bytes]]:
        if not bound:
            return []
        slices, flows = (np.concatenate(column) for column in zip(*bound, strict=True))
        offsets, ids, phases = (np.concatenate(column) for column in zip(*self._found, strict=True))
        at = np.searchsorted(offsets, flows)
        by_place: dict[tuple[int, int], dict[bytes, None]] = defaultdict(dict)
        places = zip(slices["ordinal"].tolist(), slices["size"].tolist(), strict=True)
        for place, number, phase in zip(places, ids[at].tolist(), phases[at].tolist(), strict=True):
            tag = _ENDS if phase == ord("f") else _PASSES
            by_place[place][tag + number.to_bytes(8, "little")] = None
        return [(*place, b"".join(fields)) for place, fields in sorted(by_place.items())]


def _bind(rows: Rows, to_next: Any, is_stacked: bool) -> tuple[Any, Any]:
    """Return slices and the offsets of the flows that they hold; `rows` are those of one lane, in order."""
    kinds = rows["kind"]
    is_flow, begins = are_flows(kinds), (kinds == SLICE) | (kinds == BEGIN)
    slices, flows, following = rows[begins], rows[is_flow], to_next[is_flow]
    if not len(slices):
        return slices, np.empty(0, np.int64)
    after = np.searchsorted(slices["start"], flows["start"], side="left")
    around = _stacked(kinds) if is_stacked else _around(slices, flows["start"])
    at = np.where(following, after, around)
    known = (at >= 0) & (at < len(slices))
    return slices[at[known]], flows["ordinal"][known]


def _around(slices: Rows, times: Any) -> Any:
    """For each time the last slice to begin that holds it, its end included; -1 for none."""
    rows = np.searchsorted(slices["start"], times, side="right") - 1
    over = np.flatnonzero((rows >= 0) & (slices["end"][rows] < times))
    while len(over):  # the slices within the one around it are over: few, mostly
        rows[over] -= 1
        over = over[rows[over] >= 0]
        over = over[slices["end"][rows[over]] < times[over]]
    return rows


def _stacked(kinds: Any) -> Any:
    """Of each flow the begin event that is open, by its number among them; -1 for none."""
    opened: list[int] = []
    around: list[int] = []
    begun = 0
    for kind in kinds.tolist():
        if kind == BEGIN:
            opened.append(begun)
            begun += 1
        elif kind == END:
            del opened[-1:]
        else:
            around.append(opened[-1] if opened else -1)
    return np.array(around, np.int64)
