"""Idle and busy time as HolisticTraceAnalysis 0.5.0 computes them, quirks included.

For proof alone, as `tb`. What it does otherwise: it takes what was launched before the start of the
last step, rounds times of ns resolution to whole us (starts up, ends down, so that short kernels get
negative lengths), knows NCCL's kernels alone, and counts a kernel whose name holds ``Sync`` or ``Memcpy``
as no computation.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.device.activity import Mask
from iotrace.analysis.intervals import Intervals, intersect, length
from iotrace.sources.byte_stream import blocks
from iotrace.sources.kineto.kinds import Kind
from iotrace.sources.kineto.trace import Column, KinetoTrace

_COLLECTIVE = re.compile(r"^nccl.*Kernel")
_MEMORY = re.compile(r"^Memcpy|^Memset|^dma")
_NO_COMPUTATION = re.compile(r"(^nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)")
_GAP_US = 30
_FIRST_PHASE = re.compile(rb'"traceEvents"\s*:\s*\[\s*\{[^{}]*?"ph"\s*:\s*"(\w)"')
_NEVER = -(2**62)
_DEVICE_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)


class Holistic(msgspec.Struct, frozen=True):
    """Whole us of the device, and per stream the us of gaps by class."""

    idle_us: int
    non_compute_us: int
    idle_pct: float | None
    span_us: int
    busy_us: int
    compute_us: int
    comm_comp_overlap_pct: float | None
    host_wait_us: dict[int, int]
    kernel_wait_us: dict[int, int]
    other_us: dict[int, int]


def holistic(trace: KinetoTrace) -> Holistic | None:
    """Compute what HTA says of `trace`; None without device activity."""
    events = trace.events
    starts, ends = _rounded(trace)
    spans = np.array([category == "Trace" for category in trace.categories] or [False])[events.category]
    timed = ~events.instant & ~spans
    on_device = timed & (
        ((events.stream >= 0) & (events.correlation >= 0))
        | trace.named(lambda name: name in ("Event Sync", "Context Sync"))
    )
    on_host = timed & ~on_device
    rows = _taken(trace, starts, on_device, on_host)
    rows = rows[events.stream[rows] >= 0]
    if not len(rows):
        return None
    compute = rows[~(trace.matching(_NO_COMPUTATION) | trace.matching(_MEMORY))[rows]]
    collective = rows[trace.matching(_COLLECTIVE)[rows]]
    busy = _merged(starts[rows], ends[rows])
    computing = _merged(starts[compute], ends[compute])
    communicating = _merged(starts[collective], ends[collective])
    span_us, busy_us, compute_us = int(busy[1][-1] - busy[0][0]), length(busy), length(computing)
    return Holistic(
        idle_us=span_us - busy_us,
        non_compute_us=busy_us - compute_us,
        idle_pct=_percent(span_us - busy_us, span_us),
        span_us=span_us,
        busy_us=busy_us,
        compute_us=compute_us,
        comm_comp_overlap_pct=_percent(length(intersect(communicating, computing)), length(communicating)),
        **_waits(trace, rows[np.isin(trace.kinds[rows], _DEVICE_KINDS)], starts, ends, on_host),
    )


def _percent(part_us: int, whole_us: int) -> float | None:
    """Round a share as HTA does; None of nothing: collectives, or all events, may be shorter than 1 us."""
    return round(100 * part_us / whole_us, 2) if whole_us else None


def _rounded(trace: KinetoTrace) -> Intervals:
    """Starts and ends in whole us. Times with fractions pass through float64, as in HTA's data frame."""
    events = trace.events
    since_ns = events.start_ns - (trace.base_ns or 0)
    if not (since_ns % 1000).any():
        return since_ns // 1000, since_ns // 1000 + events.duration_ns // 1000
    start_us, duration_us = since_ns / 1000, events.duration_ns / 1000
    return np.ceil(start_us).astype(np.int64), np.floor(start_us + duration_us).astype(np.int64)


def _taken(trace: KinetoTrace, starts: Column, on_device: Mask, on_host: Mask) -> npt.NDArray[np.int64]:
    """The rows that HTA keeps: all, or with several steps those launched before the last one."""
    steps = trace.named(lambda name: "ProfilerStep" in name) & on_host
    if len(np.unique(trace.events.name[steps])) < 2:
        return np.flatnonzero(on_device | on_host)
    kept_host = on_host & (starts < starts[steps].max())
    correlations, counts = np.unique(trace.events.correlation[kept_host], return_counts=True)
    device = np.flatnonzero(on_device)
    wanted = trace.events.correlation[device]
    index = np.minimum(np.searchsorted(correlations, wanted), len(correlations) - 1)
    times = np.where(correlations[index] == wanted, counts[index], 0)
    return np.concatenate((np.repeat(device, times), np.flatnonzero(kept_host)))


def _merged(starts: Column, ends: Column) -> Intervals:
    """HTA's union: intervals of negative length count, where they lie apart."""
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, highest = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate(([True], starts[1:] > highest[:-1]))
    groups = np.flatnonzero(first)
    return starts[groups], np.maximum.reduceat(ends[order], groups)


def _unknown_launch(trace: KinetoTrace, starts: Column, on_host: Mask) -> int:
    """When HTA takes a kernel without a launch for launched: when the first event of the file began.

    Where that is metadata, no such gap has a late launch.
    """
    try:
        begin = next(iter(blocks(trace.path, [])), b"")
    except OSError:  # it was moved since it was read
        begin = b""
    first = _FIRST_PHASE.search(begin)
    return int(starts[0]) if first is not None and first[1] == b"X" and on_host[0] else _NEVER


def _waits(
    trace: KinetoTrace, rows: Column, starts: Column, ends: Column, on_host: Mask
) -> dict[str, dict[int, int]]:
    """Per stream the gaps before kernels launched too late, short gaps, and the others; overlaps count."""
    events = trace.events
    calls = np.flatnonzero(on_host & (events.correlation >= 0))
    launched = dict(zip(events.correlation[calls].tolist(), starts[calls].tolist(), strict=True))
    unknown = _unknown_launch(trace, starts, on_host)
    result: dict[str, dict[int, int]] = {"host_wait_us": {}, "kernel_wait_us": {}, "other_us": {}}
    for stream in np.unique(events.stream[rows]).tolist():
        own = rows[events.stream[rows] == stream]
        own = own[np.argsort(starts[own], kind="stable")]
        previous = ends[own][:-1]
        gaps = starts[own][1:] - previous
        launch = np.array(
            [launched.get(key, unknown) for key in events.correlation[own][1:].tolist()], dtype=np.int64
        )
        host = launch > previous
        short = ~host & (gaps < _GAP_US)
        for found, mask in zip(result.values(), (host, short, ~host & ~short), strict=True):
            found[stream] = int(gaps[mask].sum())
    return result
