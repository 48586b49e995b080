"""Who was given memory, by device, in what torch.profiler recorded with memory; what was held at the peak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.modules import PHASES, origins_at, rows_around
from iotrace.analysis.results import Memory, MemoryDevice, MemoryModule, MemoryOperator, MemoryPoint
from iotrace.sources.kineto.trace import MEMORY, Column, KinetoTrace, Memory as Instants

_MOST_OPERATORS = 20  # of each device, and modules
_MOST_POINTS = 20
_OUTSIDE = "(outside of operators)"
_NO_MODULE = "(outside of modules)"
_BEFORE = "before"  # what was held when the trace began
# c10::DeviceType.
_DEVICES = {0: "CPU", 1: "CUDA", 6: "HIP", 9: "XLA", 12: "XPU", 13: "MPS", 20: "PrivateUse1"}


class _Sums(msgspec.Struct):
    given: int = 0
    given_bytes: int = 0
    freed_bytes: int = 0
    at_peak: int = 0


class _Device(msgspec.Struct):
    """Who was given memory on a device, and what its allocator held at most.

    `at_us` counts from the first event of its trace.
    """

    operators: dict[str, _Sums] = msgspec.field(default_factory=lambda: defaultdict(_Sums))
    modules: dict[str, _Sums] = msgspec.field(default_factory=lambda: defaultdict(_Sums))
    allocated: int = -1
    reserved: int = -1
    at_us: float | None = None
    by_phase: dict[str, int] | None = None
    evolution: list[MemoryPoint] = []


def memory_of(traces: Sequence[KinetoTrace]) -> Memory | None:
    """Sum up the memory of a rank's operators; None where no trace recorded memory."""
    held: dict[str, _Device] = defaultdict(_Device)
    for trace in traces:
        if len(trace.memory.bytes):
            _add(Activity(trace), held)
    if not held:
        return None
    operators = []
    modules = []
    devices = []
    for device, most in held.items():
        own = most.operators.values()
        devices.append(
            MemoryDevice(
                device=device,
                allocations=sum(each.given for each in own),
                allocated_bytes=sum(each.given_bytes for each in own),
                freed_bytes=sum(each.freed_bytes for each in own),
                peak_bytes=most.allocated if most.allocated > 0 else None,
                reserved_peak_bytes=most.reserved if most.reserved > 0 and device != "CPU" else None,
                peak_at_us=most.at_us,
                peak_by_phase_bytes=most.by_phase,
            )
        )
        operators += [
            MemoryOperator(freed_bytes=each.freed_bytes, **_given(device, name, each, most))
            for name, each in _largest(most.operators)
        ]
        modules += [
            MemoryModule(**_given(device, name, each, most))
            for name, each in _largest(most.modules)
            if each.given
        ]
    evolution = [point for most in held.values() for point in most.evolution]
    return Memory(devices=devices, operators=operators, modules=modules, evolution=evolution)


def _given(device: str, name: str, own: _Sums, most: _Device) -> dict[str, Any]:
    return {
        "device": device,
        "name": name,
        "allocations": own.given,
        "allocated_bytes": own.given_bytes,
        "at_peak_bytes": own.at_peak if most.by_phase is not None else None,
    }


def _largest(sums: dict[str, _Sums]) -> list[tuple[str, _Sums]]:
    """Return the sums of those that were given most."""
    return sorted(sums.items(), key=lambda pair: -pair[1].given_bytes)[:_MOST_OPERATORS]


def _add(activity: Activity, held: dict[str, _Device]) -> None:
    trace, events, memory = activity.trace, activity.trace.events, activity.trace.memory
    rows = np.flatnonzero(trace.named(lambda name: name == MEMORY))
    if len(rows) != len(memory.bytes):  # halves of ranges that bear this name
        return
    around = rows_around(activity, activity.operators, rows)
    names = np.where(around >= 0, events.name[np.maximum(around, 0)], -1)
    origins = origins_at(activity, rows)
    phases = origins.phase
    # A number of -1, of none, finds the last text.
    operators, modules = [*trace.names, _OUTSIDE], [*origins.modules, _NO_MODULE]
    known = memory.bytes != -1
    kinds = (memory.device_type + 1) * (1 << 20) + memory.device_id + 1
    for kind in np.unique(kinds[known]).tolist():
        own = np.flatnonzero(known & (kinds == kind))
        own = own[np.argsort(memory.time_ns[own], kind="stable")]
        device = _device(int(memory.device_type[own[0]]), int(memory.device_id[own[0]]))
        sizes = memory.bytes[own]
        most = held[device]
        called = (most.operators, names, operators), (most.modules, origins.module, modules)
        for into, numbers, texts in called:
            for number in np.unique(numbers[own]).tolist():
                size = sizes[numbers[own] == number]
                one = into[texts[number]]
                one.given += int((size >= 0).sum())
                one.given_bytes += int(size[size >= 0].sum())
                one.freed_bytes -= int(size[size < 0].sum())
        most.reserved = max(most.reserved, int(memory.reserved[own].max()))
        peak = int(memory.allocated[own].argmax())
        if memory.allocated[own[peak]] <= most.allocated:
            continue
        most.allocated = int(memory.allocated[own[peak]])
        first_ns, _ = trace.span_ns() or (0, 0)
        most.at_us = (int(memory.time_ns[own[peak]]) - first_ns) / 1e3
        for one in (*most.operators.values(), *most.modules.values()):
            one.at_peak = 0
        most.evolution = _evolution(memory, own, phases, device, first_ns)
        alive = _alive(memory, own, peak)
        most.by_phase = None
        if alive is not None:
            in_phase = (memory.bytes[alive[phases[alive] == number]].sum() for number in range(len(PHASES)))
            most.by_phase = _by_phase(in_phase, most.allocated)
            for into, numbers, texts in called:
                for number in np.unique(numbers[alive]).tolist():
                    held_bytes = memory.bytes[alive[numbers[alive] == number]].sum()
                    into[texts[number]].at_peak = int(held_bytes)


def _by_phase(held_bytes: Iterable[int], allocated: int) -> dict[str, int]:
    """Name what is held by the phase that was given it; what no instant gave was held before."""
    by_phase = dict(zip(PHASES, map(int, held_bytes), strict=True))
    return {**by_phase, _BEFORE: max(0, allocated - sum(by_phase.values()))}


def _evolution(
    memory: Instants, own: Column, phases: Column, device: str, first_ns: int
) -> list[MemoryPoint]:
    """Sample what was held, at equal times; empty without addresses, which pair a free with its giver.

    Shared memory that batches come in is told with a total of 0: it is not the allocator's.
    """
    address, sizes, times = memory.address[own], memory.bytes[own], memory.time_ns[own]
    if (address == -1).any():
        return []
    order = np.argsort(address, kind="stable")  # `own` is in order of time
    giver = np.full(len(own), -1, np.int64)
    is_same = address[order[1:]] == address[order[:-1]]
    giver[order[1:][is_same]] = order[:-1][is_same]
    is_known = (giver >= 0) & (sizes[giver] > 0)
    phase = np.where(sizes < 0, np.where(is_known, phases[own][giver], -1), phases[own])
    mapped = memory.allocated[own] == 0
    mapped &= (sizes > 0) | (giver < 0) | mapped[giver]
    phase[mapped] = -1
    kept = np.flatnonzero(~mapped)
    if not len(kept):
        return []
    ends = np.linspace(times[kept[0]], times[kept[-1]], _MOST_POINTS + 1)[1:]
    at = kept[np.unique(np.searchsorted(times[kept], ends, side="right") - 1)]
    held = [np.cumsum(np.where(phase == number, sizes, 0))[at] for number in range(len(PHASES))]
    points = []
    for row, now in enumerate(at.tolist()):
        allocated = int(memory.allocated[own[now]])
        by_phase = _by_phase((column[row] for column in held), allocated)
        at_us = (int(times[now]) - first_ns) / 1e3
        points.append(MemoryPoint(device=device, at_us=at_us, held_bytes=allocated, by_phase_bytes=by_phase))
    return points


def _alive(memory: Instants, own: Column, peak: int) -> Column | None:
    """Find which instants gave what was still held at `own[peak]`; None without addresses."""
    until = own[: peak + 1]
    if (memory.address[until] == -1).any():
        return None
    # Of each address the last instant: its memory is held where that gave it.
    last = len(until) - 1 - np.unique(memory.address[until][::-1], return_index=True)[1]
    found = until[last]
    held: Column = found[(memory.bytes[found] > 0) & (memory.allocated[found] != 0)]
    return held


def _device(kind: int, number: int) -> str:
    name = _DEVICES.get(kind, f"device type {kind}")
    return f"{name} {number}" if number >= 0 else name
