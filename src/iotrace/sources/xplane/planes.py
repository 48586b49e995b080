"""The messages of an XSpace (XLA's xplane.proto): planes, their names, and the events of their lines.

Protobuf's wire format is read as far as they need it: fields of a message as numbers and byte ranges.
Messages are read where they lie, so a file is mapped and never copied. Nothing recurses, and no length is
trusted beyond the message that holds it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT_BYTES = 10
_LONGEST_SHIFT = 63
_WORD = 1 << 64


class DamagedError(ValueError):
    """What begins at this byte is no field of a message, or goes on after the message's end."""


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read the number at `at`; returns it and the index after it."""
    value = shift = 0
    for index in range(at, min(end, at + _LONGEST_VARINT_BYTES)):
        byte = data[index]
        value |= (byte & 127) << shift
        if byte < 128:
            return value % _WORD, index + 1
        shift += 7
    raise DamagedError(at)


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield each field of the message in ``data[at:end]``: its number, and a value in two numbers.

    Of a varint these are the value and -1, of all others where the content begins and ends.
    """
    while at < end:
        # A call for each number would take half of the time: most tags and sizes have one byte.
        tag, behind = data[at], at + 1
        if tag > 127:
            tag, behind = varint(data, at, end)
        kind = tag & 7
        short = data[behind] if behind < end else 128
        if kind == VARINT:
            value, at, shift = short & 127, behind + 1, 7
            while short > 127:
                if at >= end or shift > _LONGEST_SHIFT:
                    raise DamagedError(at)
                short, at = data[at], at + 1
                value |= (short & 127) << shift
                shift += 7
            yield tag >> 3, value % _WORD, -1
            continue
        if kind == BYTES:
            size, behind = (short, behind + 1) if short < 128 else varint(data, behind, end)
        elif kind in _WIDTHS:
            size = _WIDTHS[kind]
        else:
            raise DamagedError(at)
        if behind + size > end or not tag >> 3:
            raise DamagedError(at)
        yield tag >> 3, behind, behind + size
        at = behind + size


def signed(value: int) -> int:
    """Return what an int64 field holds, whose negative numbers are written as unsigned ones."""
    return value - _WORD if value >= _WORD >> 1 else value


Value = int | float | str
Stats = dict[str, Value]
_PLANES, _HOSTS = 1, 4  # fields of an XSpace
_LONGEST_TEXT = 4096
_MOST_KEPT = 1 << 16


class Line(msgspec.Struct):
    """A thread, a stream, or a row that a profiler derived; `bytes` is where it lies."""

    bytes: tuple[int, int]
    id: int = 0
    name: str = ""
    start_ns: int = 0
    has_events: bool = False


class Plane(msgspec.Struct):
    """A device or a kind of a host's events; `lines` are byte ranges, as their names come later."""

    name: str = ""
    lines: list[tuple[int, int]] = []
    event_names: dict[int, str] = {}
    event_stats: dict[int, list[tuple[int, int]]] = {}
    stat_names: dict[int, str] = {}
    stats: Stats = {}
    read_stats: dict[bytes, tuple[str, Value]] = {}  # by their bytes: most are repeated


class Event(msgspec.Struct):
    """An event of a line: times in ps from the line's start, and the ranges of its stats."""

    name_id: int = 0
    offset_ps: int = 0
    duration_ps: int = 0
    stats: list[tuple[int, int]] = []


class Space:
    """An XSpace: its planes and hosts. `damaged_at` is the byte after which nothing could be read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.planes: list[Plane] = []
        self.hosts: list[str] = []
        self.damaged_at: int | None = None
        try:
            for number, begin, behind in fields(data, 0, len(data)):
                if number == _PLANES and behind >= 0:
                    self._add(begin, behind)
                elif number == _HOSTS and behind >= 0:
                    self.hosts.append(self._text(begin, behind))
        except DamagedError as error:  # a plane that is cut lacks its names, which are at its end
            self._damage(error)

    def _damage(self, error: DamagedError) -> None:
        at = error.args[0]
        self.damaged_at = at if self.damaged_at is None else min(self.damaged_at, at)

    def _text(self, begin: int, behind: int) -> str:
        return self._data[begin : min(behind, begin + _LONGEST_TEXT)].decode(errors="replace")

    def _add(self, begin: int, end: int) -> None:
        plane, stats = Plane(), []
        self.planes.append(plane)
        try:
            for number, at, behind in fields(self._data, begin, end):
                if behind < 0:
                    continue
                if number == 2:
                    plane.name = self._text(at, behind)
                elif number == 3:
                    plane.lines.append((at, behind))
                elif number in (4, 5):
                    self._add_name(plane, number == 4, at, behind)
                elif number == 6:
                    stats.append((at, behind))
        except DamagedError as error:
            self._damage(error)
        plane.stats = self.stats(plane, stats)

    def _add_name(self, plane: Plane, of_event: bool, begin: int, end: int) -> None:
        """One entry of a plane's map of names: a key, and a message, whose shorter name is shown."""
        key = 0
        texts: dict[int, str] = {}
        for number, value, behind in fields(self._data, begin, end):
            if number == 1 and behind < 0:
                key = value
            elif number == 2 and behind >= 0:
                for field, at, stop in fields(self._data, value, behind):
                    if stop >= 0 and (field == 2 or (of_event and field == 4)):
                        texts[field] = self._text(at, stop)
                    elif stop >= 0 and of_event and field == 5:
                        plane.event_stats.setdefault(key, []).append((at, stop))
        names = plane.event_names if of_event else plane.stat_names
        names[key] = texts.get(4) or texts.get(2, "")

    def stats(self, plane: Plane, ranges: list[tuple[int, int]]) -> Stats:
        """Read stats by their names; what is damaged or has no known type is left out."""
        stats: Stats = {}
        for begin, end in ranges:
            written = self._data[begin:end]
            known = plane.read_stats.get(written)
            if known is not None:
                stats[known[0]] = known[1]
                continue
            name = ""
            value: Value | None = None
            try:
                for number, at, behind in fields(self._data, begin, end):
                    if number == 1:
                        name = plane.stat_names.get(at, "")
                    elif number in (3, 4) and behind < 0:
                        value = signed(at) if number == 4 else at
                    elif number == 7 and behind < 0:
                        value = plane.stat_names.get(at, "")
                    elif number == 5 and behind >= 0:
                        value = self._text(at, behind)
                    elif number == 2 and behind - at == 8:
                        value = struct.unpack("<d", self._data[at:behind])[0]
            except DamagedError as error:
                self._damage(error)
                continue
            if name and value is not None:
                stats[name] = value
                if len(plane.read_stats) < _MOST_KEPT:
                    plane.read_stats[written] = name, value
        return stats

    def lines(self, plane: Plane) -> Iterator[Line]:
        """Yield the lines of a plane."""
        for begin, end in plane.lines:
            line = Line((begin, end))
            try:
                for number, at, behind in fields(self._data, begin, end):
                    if number == 4 and behind >= 0:
                        line.has_events = True
                    elif number == 1 and behind < 0:
                        line.id = signed(at)
                    elif number == 3 and behind < 0:
                        line.start_ns = signed(at)
                    elif number == 11 or (number == 2 and not line.name):
                        line.name = self._text(at, behind) if behind >= 0 else ""
            except DamagedError as error:
                self._damage(error)
            yield line

    def events(self, line: Line) -> Iterator[Event]:
        """Yield the events of a line, in the order of the file; damaged ones are left out."""
        try:
            for number, at, behind in fields(self._data, *line.bytes):
                if number == 4:
                    event = self._event(at, behind)
                    if event is not None:
                        yield event
        except DamagedError as error:
            self._damage(error)

    def _event(self, begin: int, end: int) -> Event | None:
        event = Event()
        try:
            for number, at, behind in fields(self._data, begin, end):
                if number == 4 and behind >= 0:
                    event.stats.append((at, behind))
                elif behind >= 0:
                    continue
                elif number == 1:
                    event.name_id = at
                elif number == 2:
                    event.offset_ps = signed(at)
                elif number == 3:
                    event.duration_ps = signed(at)
        except DamagedError as error:
            self._damage(error)
            return None
        return event
