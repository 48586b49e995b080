"""A trace of torch.profiler as columns.

What a trace says of single events besides their times: shapes of inputs, how a kernel fills the device.
"""

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
from iotrace.sources.kineto.column_batch import BETWEEN, MORE_TEXTS, TEXTS, Thread
from iotrace.sources.kineto.kinds import Kind, find_kind, kind_of_process

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
        table = np.array([find_kind(category) for category in self.categories] or [Kind.OTHER], dtype=np.int8)
        kinds: npt.NDArray[np.int8] = table[self.events.category]
        if "" in self.categories:  # of torch's profiler before Kineto the process says what its events are
            of_process = np.array([kind_of_process(pid) for pid, _ in self.threads], dtype=np.int8)
            bare = self.events.category == self.categories.index("")
            kinds[bare] = of_process[self.events.thread[bare]]
        return kinds

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


_DIMS, _TYPES, _BLOCKS, _WARPS, _OCCUPANCY = range(len(TEXTS))
_CONCRETE, _STREAM, _RECORD = range(len(TEXTS), len(TEXTS) + len(MORE_TEXTS))
Floats = npt.NDArray[np.float64]
_TOO_MANY_WARPS = 1.28  # for an occupancy that rounds to 0: 2 % of the 64 that a multiprocessor holds
Shape = tuple[int, ...]


class Inputs(msgspec.Struct, frozen=True):
    """The shapes of an operator's inputs, and their types; an input that is no tensor has the shape ().

    `values` are those of inputs that are no tensors, as they are written; empty where they were not kept.
    """

    shapes: tuple[Shape, ...]
    types: tuple[str, ...]
    values: tuple[str, ...] = ()


class Details(msgspec.Struct, frozen=True, dict=True):
    """The details of a trace, by the number in the column `details` of its events."""

    trace: KinetoTrace

    @cached_property
    def _texts(self) -> list[list[bytes]]:
        whole = len(TEXTS) + len(MORE_TEXTS)
        split = [text.split(BETWEEN) if text else [] for text in self.trace.details]
        return [texts + [b""] * (whole - len(texts)) for texts in split]

    @cached_property
    def blocks_per_sm(self) -> Floats:
        return self._numbers(_BLOCKS)

    @cached_property
    def occupancy_pct(self) -> Floats:
        """Kineto's estimate, which is 0 for kernels with more shared memory than CUDA gives unasked.

        That 0 is unknown: the warps that such a kernel has on a multiprocessor show it.
        """
        percent = self._numbers(_OCCUPANCY)
        percent[(percent == 0) & (self._numbers(_WARPS) >= _TOO_MANY_WARPS)] = np.nan
        return percent

    def _numbers(self, at: int) -> Floats:
        return np.array([_number(texts[at]) for texts in self._texts] or [np.nan])

    @cached_property
    def has_shapes(self) -> bool:
        return any(texts[_DIMS] for texts in self._texts)

    def inputs(self, number: int) -> Inputs | None:
        """Read the inputs of an operator; None where none were recorded."""
        texts = self._texts[number]
        dims, types = _decoded(texts[_DIMS]), _decoded(texts[_TYPES])
        if not isinstance(dims, list):
            return None
        names = types if isinstance(types, list) else []
        values = _decoded(texts[_CONCRETE])
        kept = tuple(map(str, values)) if isinstance(values, list) else ()
        return Inputs(tuple(_shape(one) for one in dims), tuple(str(name) for name in names), kept)

    def awaited(self, number: int) -> tuple[int | None, int | None]:
        """Read what a synchronisation event awaits: a stream, and the call that recorded its event."""
        stream, record = (_number(self._texts[number][at]) for at in (_STREAM, _RECORD))
        return (None if np.isnan(stream) else int(stream)), (None if np.isnan(record) else int(record))

    def of(self, column: Floats, rows: Column) -> Floats:
        """Look up what `column` says of the events of `rows`."""
        return column[self.trace.events.details[rows]]


def _shape(value: object) -> Shape:
    """The sizes of one tensor; nothing for a list of tensors, or for what is no tensor."""
    if isinstance(value, list) and all(isinstance(size, int) for size in value):
        return tuple(value)
    return ()


def _number(text: bytes) -> float:
    try:
        number = float(text.strip(b'"'))
    except ValueError:
        return np.nan
    return number if number >= 0 and np.isfinite(number) else np.nan


def _decoded(text: bytes) -> object:
    try:
        value = msgspec.json.decode(text) if text else None
        return msgspec.json.decode(value) if isinstance(value, str) and value.startswith("[") else value
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
