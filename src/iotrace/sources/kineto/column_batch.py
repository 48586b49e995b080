"""The columns of some events: what the compiled and the tolerant reader both make of a piece of a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

# The integers among an event's arguments, in the order of columns.c; torch spells the external id twice.
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
}
# Arguments that are kept as they are written, in the order of columns.c, and what lies between two of them.
TEXTS = ("Input Dims", "Input type", "blocks per SM", "warps per SM", "est. achieved occupancy %")
# Of some events more are kept, behind those: the values of inputs that are no tensors, what a stream awaits.
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
    """What the numbers in columns stand for; the lists grow while a trace is read."""

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
