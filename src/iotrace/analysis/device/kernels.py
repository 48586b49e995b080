"""What occupied the device, by name: kernels with who launched them, memory operations with bandwidth."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np

from iotrace.analysis.device.activity import Activity, Mask
from iotrace.analysis.device.modules import Origins
from iotrace.analysis.device.operators import OperatorTree
from iotrace.analysis.intervals import intersect, length, union
from iotrace.analysis.results import Kernel, MemoryOperation
from iotrace.sources.kineto.kinds import Kind

_DIRECTION = re.compile(r"\b(?:Memcpy |Copy)?([HDP])(?:ost|evice|eer)?To([HDP])", re.IGNORECASE)


class Window(msgspec.Struct, frozen=True):
    """A trace with its operators, and the modules of what its device did."""

    activity: Activity
    tree: OperatorTree
    origins: Origins


class _Sums(msgspec.Struct):
    """Sums of one kernel's calls, in ns; `by_launcher` by operator and module."""

    is_collective: bool
    calls: int = 0
    total: int = 0
    longest: int = 0
    by_launcher: dict[tuple[str | None, str | None], int] = {}


def kernels_of(windows: Sequence[Window]) -> list[Kernel]:
    """Sum up the kernels by name, the costliest first, each with who launched most of its time."""
    sums: dict[str, _Sums] = {}
    for window in windows:
        _add(sums, window)
    found = []
    for name, one in sums.items():
        operator, module = max(one.by_launcher, key=lambda each: one.by_launcher[each])
        found.append(
            Kernel(
                name=name,
                calls=one.calls,
                total_us=one.total / 1e3,
                mean_us=one.total / one.calls / 1e3,
                max_us=one.longest / 1e3,
                is_collective=one.is_collective,
                op=operator,
                module=module,
            )
        )
    return sorted(found, key=lambda one: (-one.total_us, one.name))


def _add(sums: dict[str, _Sums], window: Window) -> None:
    activity, trace, events = window.activity, window.activity.trace, window.activity.trace.events
    rows = np.flatnonzero(activity.kinds == Kind.KERNEL)
    if not len(rows):
        return
    operator = window.tree.names(window.tree.launcher[rows])
    module = window.origins.module[rows]
    # One number for the three, for numpy finds equal rows of a table ten times slower.
    operators, modules = len(trace.names) + 1, len(window.origins.modules) + 1
    keys = (events.name[rows].astype(np.int64) * operators + operator + 1) * modules + module + 1
    groups, number, counts = np.unique(keys, return_inverse=True, return_counts=True)
    totals = np.bincount(number, weights=events.duration_ns[rows]).astype(np.int64)
    longest = np.zeros(len(groups), dtype=np.int64)
    np.maximum.at(longest, number, events.duration_ns[rows])
    collective = np.zeros(len(groups), dtype=np.bool_)
    collective[number] = activity.collective_kernels[rows]
    for at, group in enumerate(groups.tolist()):
        pair, path = divmod(group, modules)
        name, op = divmod(pair, operators)
        one = sums.setdefault(trace.names[name], _Sums(bool(collective[at])))
        one.calls += int(counts[at])
        one.total += int(totals[at])
        one.longest = max(one.longest, int(longest[at]))
        launcher = (trace.names[op - 1] if op else None, window.origins.modules[path - 1] if path else None)
        one.by_launcher[launcher] = one.by_launcher.get(launcher, 0) + int(totals[at])


class _Copies(msgspec.Struct):
    calls: int = 0
    total: int = 0
    bytes: int | None = 0
    overlapped: int = 0


def memory_operations_of(windows: Sequence[Window]) -> list[MemoryOperation]:
    """Sum up copies and sets of memory by name; where one event states no bytes, their sum is unknown."""
    sums: dict[str, _Copies] = {}
    for window in windows:
        activity, events = window.activity, window.activity.trace.events
        compute = union(*activity.intervals(activity.compute_kernels))
        memory = np.isin(activity.kinds, (Kind.MEMCPY, Kind.MEMSET))
        for name in np.unique(events.name[memory]).tolist():
            own: Mask = memory & (events.name == name)
            one = sums.setdefault(activity.trace.names[name], _Copies())
            one.calls += int(own.sum())
            one.total += int(events.duration_ns[own].sum())
            sizes = events.bytes[own]
            known = one.bytes is not None and bool((sizes >= 0).all())
            one.bytes = (one.bytes or 0) + int(sizes.sum()) if known else None
            one.overlapped += length(intersect(union(*activity.intervals(own)), compute))
    return sorted((_memory(name, one) for name, one in sums.items()), key=lambda one: -one.total_us)


def _memory(name: str, one: _Copies) -> MemoryOperation:
    found = _DIRECTION.search(name)
    pinned = True if "Pinned" in name else False if "Pageable" in name else None
    return MemoryOperation(
        name=name,
        direction=f"{found[1]}to{found[2]}".upper().replace("TO", "to") if found else None,
        pinned=pinned,
        calls=one.calls,
        bytes=one.bytes,
        total_us=one.total / 1e3,
        # Bytes in a ns are GB/s.
        gb_per_s=one.bytes / one.total if one.bytes is not None and one.total else None,
        overlapped_us=one.overlapped / 1e3,
    )


def without_launch(windows: Sequence[Window]) -> int:
    """Count what the device did without a launch in the trace: most was launched before it began."""
    return sum(int((each.activity.device & (each.activity.launch < 0)).sum()) for each in windows)
