"""A trace of torch.profiler as columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from iotrace.sources.kineto.collectives import Collective
from iotrace.sources.kineto.column_batch import Thread
from iotrace.sources.kineto.kinds import Kind, kind_of

Column = npt.NDArray[np.int64]
MEMORY = "[memory]"  # the name of the instants of memory
Numbers = npt.NDArray[np.int32]


class Events(msgspec.Struct, frozen=True, dict=True):
    """Events that lasted (``ph`` X, or B with its E) and instants (duration 0), in the order of the file.

    `thread`, `category`, `name` and `details` index the lists of the trace of such names. Of the others, -1
    is unknown; `collective` indexes `collectives`. Ids and `bytes` are int32 where all of them fit.
    """

    start_ns: Column
    duration_ns: Column
    instant: npt.NDArray[np.bool_]
    thread: Numbers
    category: Numbers
    name: Numbers
    details: Numbers
    correlation: Column
    stream: Column
    device: Column
    external_id: Column
    sequence: Column
    forward_thread: Column
    bytes: Column
    collective: Numbers

    def __len__(self) -> int:
        return len(self.start_ns)

    @cached_property
    def end_ns(self) -> Column:
        return self.start_ns + self.duration_ns

    def select(self, kept: npt.NDArray[Any]) -> Events:
        """The events of a mask, or of rows."""
        return Events(**{name: getattr(self, name)[kept] for name in self.__struct_fields__})


class Memory(msgspec.Struct, frozen=True):
    """Memory that was given (`bytes` above 0) or freed, in the order of the file; -1 is unknown.

    `allocated` and `reserved` are what the device's allocator held then; `device_type` is c10's.
    """

    time_ns: Column
    thread: Numbers
    bytes: Column
    allocated: Column
    reserved: Column
    device_type: Column
    device_id: Column
    address: Column


class Flows(msgspec.Struct, frozen=True):
    """Ends of flows: `phase` is the character code of s, t or f; `flow` is the same for all of one flow."""

    time_ns: Column
    thread: Numbers
    category: Numbers
    flow: Column
    phase: npt.NDArray[np.uint8]


class KinetoTrace(msgspec.Struct, frozen=True):
    """One process's trace. `base_ns` is what its times were counted from, None where they have no epoch."""

    path: Path
    events: Events
    flows: Flows
    memory: Memory
    details: list[bytes]
    names: list[str]
    categories: list[str]
    flow_categories: list[str]
    threads: list[Thread]
    collectives: list[Collective]
    base_ns: int | None
    rank: int | None
    world_size: int | None
    devices: list[dict[str, Any]]
    process_names: dict[int | str, str]
    thread_names: dict[Thread, str]
    document: dict[str, Any]
    problems: list[str]

    @property
    def kinds(self) -> npt.NDArray[np.int8]:
        """The `Kind` of every event."""
        table = np.array([kind_of(category) for category in self.categories] or [Kind.OTHER], dtype=np.int8)
        return table[self.events.category]

    def named(self, test: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        """Which events have a name for which `test` holds; each name is asked for once."""
        table = np.array([test(name) for name in self.names] or [False], dtype=np.bool_)
        return table[self.events.name]

    def matching(self, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
        """Which events have a name that begins as `pattern`."""
        return self.named(lambda name: pattern.match(name) is not None)

    def span_ns(self) -> tuple[int, int] | None:
        """From the first start to the last end of all events; None without any."""
        if not len(self.events):
            return None
        return int(self.events.start_ns.min()), int(self.events.end_ns.max())

    def outline(self) -> KinetoTrace:
        """Keep its first and its last event and one of memory: when it was recorded, and what was."""
        events = self.events
        rows = [int(events.start_ns.argmin()), int(events.end_ns.argmax())] if len(events) else []
        kept = replace(
            events.select(np.array(rows, np.int64)),
            name=np.arange(len(rows), dtype=np.int32),
            details=np.full(len(rows), -1, np.int32),
            collective=np.full(len(rows), -1, np.int32),
        )
        return replace(
            self,
            events=kept,
            flows=Flows(**{name: getattr(self.flows, name)[:0] for name in Flows.__struct_fields__}),
            memory=Memory(**{name: getattr(self.memory, name)[:1] for name in Memory.__struct_fields__}),
            details=[],
            names=[self.names[name] for name in events.name[rows].tolist()],
            collectives=[],
            document={},
        )
