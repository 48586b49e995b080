"""Which operators were given memory, by device, in the steps that torch.profiler recorded with memory."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Memory, MemoryDevice, MemoryOperator
from iotrace.errors import TraceError
from iotrace.sources.kineto.kinds import Kind
from iotrace.sources.kineto.memory import MEMORY, Allocation, read_allocations
from iotrace.sources.kineto.trace import KinetoTrace

_MOST_OPERATORS = 20  # of each device
_OUTSIDE = "(outside of operators)"
# c10::DeviceType; torch for ROCm calls its devices CUDA.
_DEVICES = {0: "CPU", 1: "CUDA", 6: "HIP", 9: "XLA", 12: "XPU", 13: "MPS", 20: "PrivateUse1"}


class _Sums(msgspec.Struct):
    given: int = 0
    given_bytes: int = 0
    freed_bytes: int = 0


class _Held(msgspec.Struct):
    allocated: int = -1
    reserved: int = -1


def memory_of(analysis: RankAnalysis) -> Memory | None:
    """Sum up the memory of a rank's operators; None where no trace recorded memory."""
    sums: dict[tuple[str, str], _Sums] = defaultdict(_Sums)
    held: dict[str, _Held] = defaultdict(_Held)
    for trace in analysis.rank.main.windows.traces:
        if MEMORY in trace.names:
            try:
                _add(trace, read_allocations(trace.path), sums, held)
            except TraceError:  # it has been moved since it was read
                continue
    if not sums:
        return None
    operators = []
    devices = []
    for device, most in held.items():
        own = sorted(
            ((name, each) for (of, name), each in sums.items() if of == device),
            key=lambda pair: -pair[1].given_bytes,
        )
        devices.append(
            MemoryDevice(
                device=device,
                allocations=sum(each.given for _, each in own),
                allocated_bytes=sum(each.given_bytes for _, each in own),
                freed_bytes=sum(each.freed_bytes for _, each in own),
                peak_bytes=most.allocated if most.allocated > 0 else None,
                reserved_peak_bytes=most.reserved if most.reserved > 0 and device != "CPU" else None,
            )
        )
        operators += [
            MemoryOperator(
                device=device,
                name=name,
                allocations=each.given,
                allocated_bytes=each.given_bytes,
                freed_bytes=each.freed_bytes,
            )
            for name, each in own[:_MOST_OPERATORS]
        ]
    return Memory(devices=devices, operators=operators)


def _add(
    trace: KinetoTrace,
    allocations: list[Allocation | None],
    sums: dict[tuple[str, str], _Sums],
    held: dict[str, _Held],
) -> None:
    events = trace.events
    rows = np.flatnonzero(trace.named(lambda name: name == MEMORY) & events.instant)
    if len(rows) != len(allocations):  # of a damaged trace: which is which is not known
        return
    inside = _innermost(trace, rows)
    for operator, allocation in zip(inside.tolist(), allocations, strict=True):
        if allocation is None:
            continue
        kind = _DEVICES.get(allocation.device_type, f"device type {allocation.device_type}")
        device = f"{kind} {allocation.device}" if allocation.device >= 0 else kind
        own = sums[device, trace.names[operator] if operator >= 0 else _OUTSIDE]
        if allocation.size >= 0:
            own.given += 1
            own.given_bytes += allocation.size
        else:
            own.freed_bytes -= allocation.size
        most = held[device]
        most.allocated = max(most.allocated, allocation.allocated)
        most.reserved = max(most.reserved, allocation.reserved)


def _innermost(trace: KinetoTrace, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The name of the innermost operator that each instant of `rows` lies in, on its thread; -1 without."""
    events = trace.events
    operators = np.flatnonzero((trace.kinds == Kind.CPU_OP) & ~events.instant)
    both = np.concatenate((operators, rows))
    is_instant = np.repeat([0, 1], [len(operators), len(rows)])
    order = np.lexsort((is_instant, -events.duration_ns[both], events.start_ns[both], events.thread[both]))
    found = np.full(len(rows), -1, np.int64)
    open_ones: list[tuple[int, int]] = []  # end and name of the operators around
    thread = None
    columns = (events.thread[both], events.start_ns[both], events.end_ns[both], events.name[both])
    threads, starts, ends, names = (column.tolist() for column in columns)
    for at in order.tolist():
        if threads[at] != thread:
            thread = threads[at]
            open_ones.clear()
        while open_ones and open_ones[-1][0] <= starts[at]:
            open_ones.pop()
        if at < len(operators):
            open_ones.append((ends[at], names[at]))
        elif open_ones:
            found[at - len(operators)] = open_ones[-1][1]
    return found
