"""Communication by kind and process group: how much, how fast, and how much of it no computation hid."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.modules import rows_around
from iotrace.analysis.intervals import length, subtract, union
from iotrace.analysis.results import CollectiveKind
from iotrace.sources.kineto.collectives import Collective
from iotrace.sources.kineto.trace import Numbers

# What a name of a kernel says of its kind, where its arguments say nothing; in this order.
_KINDS = {
    "all_reduce": re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE),
    "all_gather": re.compile(r"all_?gather", re.IGNORECASE),
    "reduce_scatter": re.compile(r"reduce_?scatter", re.IGNORECASE),
    "all_to_all": re.compile(r"all_?to_?all", re.IGNORECASE),
    "send_recv": re.compile(r"send|recv", re.IGNORECASE),
    "broadcast": re.compile(r"broadcast", re.IGNORECASE),
    "dispatch": re.compile(r"dispatch", re.IGNORECASE),
    "combine": re.compile(r"combine", re.IGNORECASE),
    "reduce": re.compile(r"reduce", re.IGNORECASE),
    "barrier": re.compile(r"barrier", re.IGNORECASE),
}
OTHER = "other"
_BYTES = {
    **dict.fromkeys(("double", "long", "long int", "int64", "float64", "complexfloat"), 8),
    **dict.fromkeys(("float", "int", "float32", "int32"), 4),
    **dict.fromkeys(("half", "c10::half", "bfloat16", "c10::bfloat16", "short", "float16", "int16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8", "unsigned char", "signed char"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
}


class _Sums(msgspec.Struct):
    calls: int = 0
    total: int = 0
    exposed: int = 0
    bytes: int | None = 0
    group_size: int | None = None


def collectives_of(windows: Sequence[Activity]) -> list[CollectiveKind]:
    """Sum up the kernels that communicate by kind and group, the costliest first."""
    sums: dict[tuple[str, str | None], _Sums] = {}
    for activity in windows:
        _add(sums, activity)
    return sorted(
        (_kind(kind, group, one) for (kind, group), one in sums.items()), key=lambda one: -one.total_us
    )


def _add(sums: dict[tuple[str, str | None], _Sums], activity: Activity) -> None:
    trace, events = activity.trace, activity.trace.events
    rows = np.flatnonzero(activity.collective_kernels)
    compute = union(*activity.intervals(activity.compute_kernels))
    members: dict[tuple[str, str | None], list[int]] = {}
    for row, number, name in zip(
        rows.tolist(), told_collectives(activity)[rows].tolist(), events.name[rows].tolist(), strict=True
    ):
        known = trace.collectives[number] if number >= 0 else None
        kind = kind_of(known.name) if known is not None else OTHER
        kind = kind_of(trace.names[name]) if kind == OTHER else kind
        key = kind, known.group if known is not None else None
        members.setdefault(key, []).append(row)
        one = sums.setdefault(key, _Sums())
        size = None
        if known is not None:
            one.group_size = one.group_size or known.group_size
            size = bytes_of(known)
        one.bytes = one.bytes + size if one.bytes is not None and size is not None else None
    for key, own in members.items():
        one = sums[key]
        one.calls += len(own)
        one.total += int(events.duration_ns[own].sum())
        one.exposed += length(subtract(union(events.start_ns[own], events.end_ns[own]), compute))


def told_collectives(activity: Activity) -> Numbers:
    """Find per event which of the trace's collectives it is; -1 unknown.

    A kernel that does not say so itself is that of the range around its launch: of ``record_param_comms``
    where that tells, else of its backend's (``nccl:all_reduce``).
    """
    events = activity.trace.events
    found: Numbers = events.collective.copy()
    rows = np.flatnonzero(activity.collective_kernels & (found < 0) & (activity.launch >= 0))
    known = (events.collective >= 0) & activity.ranges
    for mask in (known & activity.collective_ranges, known & ~activity.collective_ranges):
        if len(rows) and mask.any():
            around = rows_around(activity, mask, activity.launch[rows])
            told = around >= 0
            found[rows[told]] = events.collective[around[told]]
    return found


def bytes_of(one: Collective) -> int | None:
    """Compute what a call moves of a rank, the larger of in and out; None where the trace does not tell."""
    width = _BYTES.get((one.dtype or "").lower())
    return one.elements * width if one.elements is not None and width is not None else None


def kind_of(name: str) -> str:
    """Name the kind of a collective: ``all_reduce`` for ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``."""
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(name)), OTHER)


def _kind(kind: str, group: str | None, one: _Sums) -> CollectiveKind:
    # Bytes in a ns are GB/s; a call without bytes (a barrier) has no bandwidth.
    algorithm = one.bytes / one.total if one.bytes and one.total else None
    factor = bus_factor(kind, one.group_size)
    return CollectiveKind(
        kind=kind,
        group=group,
        group_size=one.group_size,
        calls=one.calls,
        bytes=one.bytes,
        total_us=one.total / 1e3,
        exposed_us=one.exposed / 1e3,
        algorithm_gb_per_s=algorithm,
        bus_gb_per_s=None if algorithm is None or factor is None else algorithm * factor,
    )


def bus_factor(kind: str, size: int | None) -> float | None:
    """What nccl-tests multiplies the algorithm's bandwidth by (its doc/PERFORMANCE.md), for `size` ranks."""
    if size is None or size < 1:
        return None
    share = (size - 1) / size
    once = dict.fromkeys(("broadcast", "reduce", "send_recv"), 1.0)
    parts = dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), share)
    return {"all_reduce": 2 * share, **once, **parts}.get(kind)
