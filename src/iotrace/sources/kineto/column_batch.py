"""The columns of some events: what the compiled and the tolerant reader both make of a piece of a trace.

The columns of decoded events: of odd ones, and of all where no library was compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Raw

from iotrace.sources.chrome.batch import Event, EventBatch

# The integers among an event's arguments, in the order of columns.c; torch spells the external id twice.
# On Intel's devices streams are queues of SYCL.
INTEGERS = {
    "correlation": "correlation",
    "stream": "stream",
    "device": "device",
    "External id": "external_id",
    "Sequence number": "sequence",
    "Fwd thread id": "forward_thread",
    "bytes": "bytes",
    "external id": "old_external_id",
    "Bytes": "memory_bytes",
    "Total Allocated": "allocated",
    "Total Reserved": "reserved",
    "Device Type": "device_type",
    "Device Id": "device_id",
    "Addr": "address",
    "sycl queue": "sycl_queue",
}
# Arguments that are kept as they are written, in the order of columns.c, and what lies between two of them.
TEXTS = ("Input Dims", "Input type", "blocks per SM", "warps per SM", "est. achieved occupancy %")
# Some events keep more, after those: the values of inputs that are no tensors, what a stream awaits.
MORE_TEXTS = ("Concrete Inputs", "wait_on_stream", "wait_on_cuda_event_record_corr_id")
BETWEEN = b"\xff"
LONGEST_DETAILS = 2048
COLLECTIVE_NAME = "Collective name"
UNKNOWN = -1

# `Event` and `FlowEnd` of columns.c.
EVENT = np.dtype(
    [
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        *((name, "<i8") for name in INTEGERS.values()),
        ("thread", "<i4"),
        ("category", "<i4"),
        ("name", "<i4"),
        ("details", "<i4"),
        ("arguments", "<i4"),
        ("arguments_stop", "<i4"),
        ("phase", "u1"),
        ("is_collective", "u1"),
    ],
    align=True,
)
FLOW_END = np.dtype(
    [("time_ns", "<i8"), ("id", "<i8"), ("thread", "<i4"), ("category", "<i4"), ("phase", "u1")], align=True
)
EVENT_PHASES = "XiIBE"
FLOW_PHASES = "stf"

Thread = tuple[int | str, int | str]
Rows = npt.NDArray[Any]


class Numbered(list[Any]):
    """Distinct values, in the order of their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        """The number of a value, which is added where it is new."""
        number = self._numbers.setdefault(value, len(self))
        if number == len(self):
            self.append(value)
        return number


class Strings(msgspec.Struct):
    """What the numbers in columns mean; the lists grow while a trace is read."""

    names: Numbered = msgspec.field(default_factory=Numbered)
    categories: Numbered = msgspec.field(default_factory=Numbered)
    threads: Numbered = msgspec.field(default_factory=Numbered)
    details: Numbered = msgspec.field(default_factory=Numbered)
    flow_categories: Numbered = msgspec.field(default_factory=Numbered)


class Metadata(msgspec.Struct, gc=False):
    """A metadata event; `args` is JSON, empty where it has none."""

    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    args: msgspec.Raw = msgspec.Raw(b"")


class ColumnBatch(msgspec.Struct):
    """Events and flow ends as rows of `EVENT` and `FLOW_END`; numbers of strings index `strings`.

    The rows are valid until the next batch is made. `arguments` gives the JSON of an event's `args`, by row.
    """

    events: Rows
    flow_ends: Rows
    metadata: list[Metadata]
    strings: Strings
    arguments: Callable[[int], bytes]


def number_or_text(value: int | str | None) -> int | str:
    """A pid or tid: an integer also where it is written in a string; 0 where there is none."""
    if isinstance(value, str):
        return int(value) if value.isdecimal() and value.isascii() else value
    return 0 if value is None else value


_INTEGER = re.compile(rb'(-?\d{1,19})(?:\.\d+)?|"(-?\d{1,19})"')
_HEXADECIMAL = re.compile(r"(?:0[xX](?=.))?([0-9a-fA-F]{1,13})")
_LONGEST_ID = 13
_LEAST_BEYOND = 1 << 62
_arguments = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


def decoded_columns(batch: EventBatch, strings: Strings) -> ColumnBatch:
    """Make the columns of decoded events; their strings are numbered in `strings`."""
    events: list[tuple[Any, ...]] = []
    flow_ends: list[tuple[Any, ...]] = []
    metadata: list[Metadata] = []
    arguments: list[bytes] = []
    for event, start_ns, duration_ns in zip(
        batch.events, batch.start_ns.tolist(), batch.duration_ns.tolist(), strict=True
    ):
        if len(event.ph) != 1:
            continue
        args = Raw(b"") if event.args is UNSET else event.args
        if event.ph in EVENT_PHASES:
            events.append((start_ns, duration_ns, *_event(event, args, strings)))
            arguments.append(bytes(args))
        elif event.ph in FLOW_PHASES:
            category = strings.flow_categories.number(_text(event.cat))
            flow_ends.append((start_ns, _id(event.id), _thread(event, strings), category, ord(event.ph)))
        elif event.ph == "M":
            metadata.append(Metadata(_text(event.name), _or_none(event.pid), _or_none(event.tid), args))
    return ColumnBatch(
        np.array(events, EVENT), np.array(flow_ends, FLOW_END), metadata, strings, arguments.__getitem__
    )


def _event(event: Event, args: Raw, strings: Strings) -> tuple[int, ...]:
    decoded = _decode_arguments(args)
    integers = [_integer(decoded.get(key)) for key in INTEGERS]
    return (
        *integers,
        _thread(event, strings),
        strings.categories.number(_text(event.cat)),
        strings.names.number(_text(event.name)),
        strings.details.number(_details(decoded)),
        0,
        0,
        ord(event.ph),
        bytes(decoded.get(COLLECTIVE_NAME, b"null"))[:1] != b"n",
    )


def _thread(event: Event, strings: Strings) -> int:
    return strings.threads.number((number_or_text(_or_none(event.pid)), number_or_text(_or_none(event.tid))))


def _decode_arguments(args: Raw) -> dict[str, Raw]:
    """The arguments by their keys, as they are written; none where they are no object."""
    try:
        return _arguments(args) if bytes(args) else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _details(decoded: dict[str, Raw]) -> bytes:
    """As `number_of_details` of columns.c."""
    details = BETWEEN.join(bytes(decoded.get(key, b"")) for key in TEXTS)
    return details if len(details) < LONGEST_DETAILS else b""


def more_details(arguments: bytes) -> bytes | None:
    """Join those of `MORE_TEXTS`; None without any, and where they are too long."""
    decoded = _decode_arguments(Raw(arguments))
    details = BETWEEN.join(bytes(decoded.get(key, b"")) for key in MORE_TEXTS)
    return details if len(MORE_TEXTS) <= len(details) < LONGEST_DETAILS else None


def _integer(raw: Raw | None) -> int:
    """As `read_integer` of columns.c."""
    match = None if raw is None else _INTEGER.fullmatch(bytes(raw))
    if match is None:
        return UNKNOWN
    number = int(match[1] or match[2])
    return number if abs(number) < _LEAST_BEYOND else UNKNOWN


def _id(value: Any) -> int:
    """As `identity` of scan.c, and a hash of what is no number for it."""
    if type(value) is int and 0 <= value < 10**_LONGEST_ID:
        return value
    match = _HEXADECIMAL.fullmatch(value) if isinstance(value, str) else None
    return int(match[1], 16) if match else negative_hash(b"" if value is UNSET else _encode(value))


def negative_hash(text: bytes) -> int:
    """A negative number for a text (FNV-1a), as in columns.c."""
    value = 0xCBF29CE484222325
    for byte in text:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return -1 - (value >> 2)


def _text(value: Any) -> str:
    return "" if value is UNSET else value


def _or_none(value: Any) -> Any:
    return None if value is UNSET else value
