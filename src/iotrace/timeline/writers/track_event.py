"""What is inside of a TrackEvent: name, category and arguments of an event as protobuf fields."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET

from iotrace.sources.chrome.event import OPAQUE, Event, encode_number
from iotrace.timeline.writers.compiled_native import CATEGORIES, LABELS, NAMES, Interned
from iotrace.timeline.writers.protobuf import annotation, data, integer

MOST_INTERNED = 200_000  # names that come once each are written where they stand
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
        pieces = [head]
        if event.args is not UNSET:
            args = decode(event.args)
            if isinstance(args, dict):
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
            found = self._repeated.get((key, value))
            if found is None:
                found = self._encoded(key, value)
                if len(self._repeated) < MOST_INTERNED and len(found) < _LONGEST_REPEATED:
                    self._repeated[key, value] = found
            return found
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
