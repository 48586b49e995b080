"""Descriptors of a native trace's tracks: a tree in the wanted order, or processes with their threads.

Perfetto sorts processes by how many slices they hold, and this cannot be changed. Plain tracks keep the
order that is asked for, so a trace is one root with groups below it. Its tables `process` and `thread` are
then empty; who asks for them in SQL gets processes, in Perfetto's order.

Protobuf's wire format, as far as Perfetto's packets need it.

The generated classes take 20 µs an event; what is the same in every packet is encoded here once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import count
from typing import Any

from iotrace.timeline.writers.id_map import Process


def _encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_SMALL = [_encode_varint(number) for number in range(1 << 14)]
_MASK = (1 << 64) - 1


def varint(number: int) -> bytes:
    """An integer of 64 bits, negative ones as two's complement."""
    return _SMALL[number] if 0 <= number < 1 << 14 else _encode_varint(number & _MASK)


def integer(field: int, value: int) -> bytes:
    """A varint field."""
    return varint(field << 3) + varint(value)


def data(field: int, value: bytes) -> bytes:
    """A field of bytes, a string or a message."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A string field; what is no Unicode is escaped."""
    return data(field, value.encode(errors="backslashreplace"))


def double(field: int, value: float) -> bytes:
    """A field of eight bytes."""
    return varint(field << 3 | 1) + struct.pack("<d", value)


def packet(*fields: bytes) -> bytes:
    """A TracePacket in its frame."""
    return data(1, b"".join(fields))


def annotation(name: bytes, value: Any) -> bytes:
    """The fields of a DebugAnnotation; `name` is its encoded name, empty inside arrays."""
    if isinstance(value, bool):
        return name + (b"\x10\x01" if value else b"\x10\x00")
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 63:
            return name + b"\x20" + varint(value)
        return name + (b"\x18" + varint(value) if 0 < value <= _MASK else text(6, str(value)))
    if isinstance(value, float):
        return name + double(5, value)
    if isinstance(value, str):
        return name + text(6, value)
    if isinstance(value, dict):
        entries = (annotation(text(10, str(key)), item) for key, item in value.items() if item is not None)
        return name + b"".join(data(11, entry) for entry in entries)
    if isinstance(value, list):
        return name + b"".join(data(12, annotation(b"", item)) for item in value)
    return name + text(6, "null" if value is None else str(value))


PROCESS_UUID = 1 << 40
GROUP_UUID = PROCESS_UUID + (1 << 38)  # the first group of tracks within each process
_NEXT_GROUP = 1 << 36  # processes have smaller numbers
COUNTERS_OF_UUID = PROCESS_UUID + (1 << 39)  # the counters of each process
ROOT_UUID = 1 << 41
_COUNTERS = "counters"
_EXPLICIT = 3  # children are shown in the order of their ranks


def tree(title: str, processes: list[Process]) -> Iterator[bytes]:
    """Yield the root, the groups of `processes`, the processes with their tracks, their counters at last."""
    yield _track(ROOT_UUID, title, None, 0)
    groups: dict[tuple[str, ...], int] = {(): ROOT_UUID}
    for process in processes:
        above = ROOT_UUID
        for depth in range(1, len(process.groups) + 1):
            path = process.groups[:depth]
            if path not in groups:
                if not process.threads:
                    break  # nothing else is in this group, and it has counters alone, or instants
                groups[path] = ROOT_UUID + len(groups)
                yield _track(groups[path], path[-1], above, process.order)
            above = groups[path]
        # One that has no slices of its own may have instants, which name it.
        yield _track(PROCESS_UUID + process.pid, process.short or process.name, above, process.order)
        within = {"": PROCESS_UUID + process.pid}
        for thread in process.threads:
            if thread.group not in within:
                within[thread.group] = GROUP_UUID + process.pid + _NEXT_GROUP * (len(within) - 1)
                yield _track(within[thread.group], thread.group, within[""], thread.order)
            # Lanes of one thread have one name: Perfetto shows them as one track.
            yield _track(thread.tid, thread.name, within[thread.group], thread.order)
    counters = ROOT_UUID + len(groups)
    yield _track(counters, _COUNTERS, ROOT_UUID, len(processes) + 1)
    for process in processes:
        yield _track(COUNTERS_OF_UUID + process.pid, process.name, counters, process.order)


def _track(uuid: int, name: str, above: int | None, order: int) -> bytes:
    fields = integer(1, uuid) + text(2, name) + integer(11, _EXPLICIT) + integer(12, order)
    return fields if above is None else fields + integer(5, above)


def tables(processes: list[Process]) -> Iterator[bytes]:
    """Yield processes and threads, which fill the tables of these names."""
    # The tracks' own numbers join the packets; those that are shown can be dense and in order, by which
    # Perfetto sorts the threads of native traces. No thread's is a process's, which would make it a main one.
    shown = count(1001 if len(processes) < 1000 else len(processes) + 1)
    for process in processes:
        fields = integer(1, process.order) + text(6, process.name) + integer(3, process.order)
        if process.labels:
            fields += text(8, process.labels)
        yield integer(1, PROCESS_UUID + process.pid) + data(3, fields)
        for thread in process.threads:
            name = f"{thread.name} +{thread.lane}" if thread.lane else thread.name
            fields = integer(1, process.order) + integer(2, next(shown)) + text(5, name)
            yield integer(1, thread.tid) + data(4, fields + integer(3, thread.order))
    yield integer(1, ROOT_UUID) + text(2, "whole trace")
