"""What a torch.profiler trace says that the device and the host did, as columns for the figures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Intervals, union
from iotrace.analysis.table import match
from iotrace.sources.kineto.collectives import is_collective_kernel
from iotrace.sources.kineto.kinds import Kind, is_collective_range, is_data_wait, module_of, step_of
from iotrace.sources.kineto.trace import Column, KinetoTrace

Mask = npt.NDArray[np.bool_]

# Calls that return when the device has done something, or all: of CUDA, HIP, SYCL (ur), Level Zero (ze).
_SYNCHRONISES = re.compile(
    r"(?:cuda|hip|cu)(?:Stream|Device|Event|Ctx)Synchronize|urQueueFinish|urEventWait"
    r"|ze(?:CommandQueue|CommandList|Event|Fence)(?:Host)?Synchronize"
)
_COPIES = re.compile(
    r"(?:cuda|hip)Memcpy(?:WithStream|2D|3D|ToSymbol|FromSymbol|[HD]to[HD])?$|cuMemcpy[HD]to[HD]_v2$"
)
_UPDATE = re.compile(r"Optimizer\.step#")
_FEWEST_UPDATES = 2  # a single one tells of no step's length
_TO_PAGEABLE = re.compile(r"Memcpy DtoH \(Device -> Pageable\)")


def _mask(value: npt.ArrayLike) -> Mask:
    return np.asarray(value, dtype=np.bool_)


def steps_in_order(trace: KinetoTrace, steps: Mask) -> tuple[Intervals, list[int]]:
    """Starts and ends of the events of `steps` in order of time, and the numbers in their names."""
    rows = np.flatnonzero(steps)
    rows = rows[np.argsort(trace.events.start_ns[rows], kind="stable")]
    numbers = [step_of(trace.names[name]) or 0 for name in trace.events.name[rows].tolist()]
    return (trace.events.start_ns[rows], trace.events.end_ns[rows]), numbers


def summed_by(keys: npt.NDArray[Any], *columns: npt.ArrayLike) -> Iterator[tuple[int, Column]]:
    """Yield each different key, and the sum of each of `columns` over its rows.

    A float64 holds 104 days in ns exactly.
    """
    known, of = np.unique(keys, return_inverse=True)
    sums = [np.bincount(of, weights=np.asarray(column), minlength=len(known)) for column in columns]
    yield from zip(known.tolist(), np.stack(sums, axis=1).astype(np.int64), strict=True)


class Activity(msgspec.Struct, frozen=True, dict=True):
    """A trace with what its events are. Masks and columns have one entry per event.

    `by_updates`: where the profiler told no steps, each lasts until an update of the optimizer has ended.
    """

    trace: KinetoTrace
    by_updates: bool = False

    @cached_property
    def kinds(self) -> npt.NDArray[np.int8]:
        kinds = self.trace.kinds
        kinds[self.trace.events.instant] = Kind.OTHER
        return kinds

    @cached_property
    def device(self) -> Mask:
        """What occupied the device: kernels and memory operations."""
        return _mask((self.kinds == Kind.KERNEL) | self.memory_operations)

    @cached_property
    def memory_operations(self) -> Mask:
        """Copies and sets of memory."""
        return _mask(np.isin(self.kinds, (Kind.MEMCPY, Kind.MEMSET)))

    @cached_property
    def collective_kernels(self) -> Mask:
        return _mask((self.kinds == Kind.KERNEL) & self.trace.named(is_collective_kernel))

    @cached_property
    def compute_kernels(self) -> Mask:
        return _mask((self.kinds == Kind.KERNEL) & ~self.collective_kernels)

    @cached_property
    def _host_ranges(self) -> Mask:
        # Before torch 1.12 ranges had the category of operators.
        return _mask((self.kinds == Kind.ANNOTATION) | (self.kinds == Kind.CPU_OP))

    @cached_property
    def ranges(self) -> Mask:
        """Ranges and operators on the host, and functions where stacks were recorded."""
        return _mask(self._host_ranges | (self.kinds == Kind.PYTHON))

    @cached_property
    def collective_ranges(self) -> Mask:
        """Collectives on the host: gloo's own work, or the launch of a kernel of NCCL's."""
        return self._host_ranges & self.trace.named(is_collective_range)

    @cached_property
    def _asks(self) -> Mask:
        return self._host_ranges & self.trace.named(is_data_wait)

    @cached_property
    def data_waits(self) -> Mask:
        """The loop's: a thread that fetches ahead waits for itself."""
        thread = self.trace.events.thread
        return _mask(self._asks & np.isin(thread, thread[self.steps])) if self.steps.any() else self._asks

    @cached_property
    def steps(self) -> Mask:
        return self._host_ranges & self.trace.named(lambda name: step_of(name) is not None)

    @cached_property
    def modules(self) -> Mask:
        """The forwards of modules."""
        return _mask(self.ranges & self.trace.named(lambda name: module_of(name) is not None))

    @cached_property
    def operators(self) -> Mask:
        others = self.collective_ranges | self._asks | self.steps | self.modules
        return _mask((self.kinds == Kind.CPU_OP) & ~others)

    @cached_property
    def synchronising(self) -> Mask:
        """Calls that wait for the device, as they say."""
        return _mask((self.kinds == Kind.RUNTIME) & self.trace.matching(_SYNCHRONISES))

    @cached_property
    def blocking_copies(self) -> Mask:
        """Calls that copy and return when that is done: to pageable memory all do, whatever their name."""
        found = (self.kinds == Kind.RUNTIME) & self.trace.matching(_COPIES)
        call = self.launch[self.device & self.trace.matching(_TO_PAGEABLE)]
        found[call[call >= 0]] = True
        return _mask(found)

    def intervals(self, rows: Mask | Column) -> Intervals:
        """Starts and ends of some events, by a mask or by their rows."""
        events = self.trace.events
        return events.start_ns[rows], events.end_ns[rows]

    def busy(self) -> Intervals:
        """When the device did anything, as disjoint intervals."""
        return union(*self.intervals(self.device))

    def step_spans(self) -> tuple[Intervals, list[int]]:
        """The profiler's steps in order of time, and their numbers; else those that end with an update."""
        if self.by_updates and not self.steps.any():
            found: tuple[Intervals, list[int]] = self._steps_by_updates
            return found
        return steps_in_order(self.trace, self.steps)

    @cached_property
    def _steps_by_updates(self) -> tuple[Intervals, list[int]]:
        """From update to update of the optimizer that made most; the first begins with the first launch."""
        events = self.trace.events
        rows = np.flatnonzero(self._host_ranges & self.trace.matching(_UPDATE))
        names, counts = np.unique(events.name[rows], return_counts=True)
        if not len(names) or counts.max() < _FEWEST_UPDATES:
            return (events.start_ns[:0], events.end_ns[:0]), []
        rows = rows[events.name[rows] == names[counts.argmax()]]
        ends = np.sort(events.end_ns[rows])
        calls = self.launch[self.device]
        known = calls[calls >= 0] if len(calls) else calls
        known = known if len(known) else np.flatnonzero(self.operators)
        begun = min(int(events.start_ns[known].min()), int(ends[0]) - 1) if len(known) else int(ends[0]) - 1
        return (np.append(begun, ends[:-1]), ends), list(range(len(ends)))

    def whole(self) -> Intervals:
        """The trace as one step: from the first operator to the last one, or to the end of the device's work.

        A data wait may begin or end it; where the host was not recorded, the device does. Empty without any.
        """
        host = self.operators | self.data_waits
        starts, ends = self.intervals(host if host.any() else self.device)
        if not len(starts):
            return starts, ends
        ends = np.append(ends, self.trace.events.end_ns[self.device])
        return starts.min(keepdims=True), ends.max(keepdims=True)

    def launched_ns(self, rows: Column, unknown_is: npt.ArrayLike) -> Column:
        """When the events in `rows` were launched; `unknown_is` where that is not known."""
        call = self.launch[rows]
        return np.where(call >= 0, self.trace.events.start_ns[np.maximum(call, 0)], unknown_is)

    @cached_property
    def launch(self) -> Column:
        """Find per event the row of the runtime call that launched it, by correlation; -1 where unknown."""
        events = self.trace.events
        found = np.full(len(events), -1, dtype=np.int64)
        # Of several calls with a number the first: `match` finds the last.
        calls = np.flatnonzero((self.kinds == Kind.RUNTIME) & (events.correlation >= 0))[::-1]
        wanted = np.flatnonzero(self.device & (events.correlation >= 0))
        call = match(events.correlation[wanted], events.correlation[calls])
        found[wanted] = np.append(calls, -1)[call]
        return found
