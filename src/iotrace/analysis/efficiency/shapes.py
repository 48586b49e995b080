"""Operators by the shapes of their inputs: what each cost, FLOP/s and GB/s, how near the roofline."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.device.kernels import Window, uses_tensor_cores
from iotrace.analysis.efficiency.flops import Moved, Work, traffic_of, work_of
from iotrace.analysis.results import DevicePeaks, KernelCategory, OperatorShapes
from iotrace.sources.kineto.trace import Column, Inputs

_MOST_SHAPES = 100
_COPY = "Memcpy"  # begins the names of copies that no kernel makes
Key = tuple[str, Inputs]


class _Sums(msgspec.Struct):
    """Sums of the calls of an operator with one kind of inputs, in ns; `own` is without operators inside.

    `launched`: the names of what its calls themselves launched.
    """

    calls: int = 0
    host: int = 0
    device: int = 0
    own: int = 0
    launched: set[str] = msgspec.field(default_factory=set)


class Shapes:
    """The operators of some traces by name and inputs; nothing without recorded shapes."""

    def __init__(self, windows: Sequence[Window], peaks: DevicePeaks | None) -> None:
        self._peaks = peaks
        self._sums: dict[Key, _Sums] = {}
        for window in windows:
            if window.details.has_shapes:
                _add(self._sums, window)
        self._works = {key: work_of(*key) for key in self._sums}
        self._moved = {key: _moved(key, one) for key, one in self._sums.items()}

    def rows(self) -> list[OperatorShapes]:
        """Make the rows, the costliest for the device first; of all but products and attention the first 100.

        Every product and attention is listed: their sums tell what the device did in all.
        """
        sums, works = self._sums, self._works
        costliest = sorted(sums, key=lambda key: (-sums[key].device, -sums[key].host, key[0]))
        own = {*sorted(sums, key=lambda key: -sums[key].own)[:_MOST_SHAPES]}
        kept = [
            key
            for at, key in enumerate(costliest)
            if at < _MOST_SHAPES or works[key] is not None or key in own
        ]
        return [_row(key, sums[key], works[key], self._moved[key], self._peaks) for key in kept]

    def rated(self, categories: Sequence[KernelCategory]) -> list[KernelCategory]:
        """Add to categories how fast those of their operators move memory of which the bytes are known."""
        found = []
        for one in categories:
            own = [(key, moved) for key, moved in self._moved.items() if moved and moved[0] == one.category]
            ns = sum(self._sums[key].own for key, _ in own)
            if ns:
                rate = sum(self._sums[key].calls * moved[1] for key, moved in own) / ns
                share = min(100.0, ns / 10 / one.total_us)
                one = replace(one, gb_per_s=rate, known_pct=share, roofline_pct=_of_memory(rate, self._peaks))
            found.append(one)
        return found


def _add(sums: dict[Key, _Sums], window: Window) -> None:
    tree, trace = window.tree, window.activity.trace
    events = trace.events
    outermost = np.flatnonzero(tree.outermost)
    rows = tree.rows[outermost]
    if not len(rows):
        return
    names, numbers = events.name[rows].astype(np.int64), events.details[rows].astype(np.int64)
    keys, group = np.unique(names * (len(trace.details) + 1) + numbers, return_inverse=True)
    sizes = (
        np.ones(len(rows)),
        events.duration_ns[rows],
        tree.device_total[outermost],
        tree.device_self[outermost],
    )
    columns = [
        np.bincount(group, weights=weights, minlength=len(keys)).astype(np.int64).tolist()
        for weights in sizes
    ]
    launched = _launched(window, outermost, group, len(keys))
    for at, key in enumerate(keys.tolist()):
        name, number = divmod(key, len(trace.details) + 1)
        inputs = window.details.inputs(number)
        if inputs is None or not any(inputs.shapes):
            continue
        one = sums.setdefault((trace.names[name], inputs), _Sums())
        one.calls += columns[0][at]
        one.host += columns[1][at]
        one.device += columns[2][at]
        one.own += columns[3][at]
        one.launched |= launched[at]


def _launched(window: Window, outermost: Column, group: Column, count: int) -> list[set[str]]:
    """Name per group what its operators themselves launched."""
    tree, trace = window.tree, window.activity.trace
    groups = np.full(len(tree.rows) + 1, -1, dtype=np.int64)
    groups[outermost] = group
    rows = np.flatnonzero(tree.launcher >= 0)
    own = groups[tree.launcher[rows]]
    found: list[set[str]] = [set() for _ in range(count)]
    pairs = np.unique(own[own >= 0] * len(trace.names) + trace.events.name[rows][own >= 0])
    for pair in pairs.tolist():
        at, name = divmod(pair, len(trace.names))
        found[at].add(trace.names[name])
    return found


def _moved(key: Key, one: _Sums) -> Moved | None:
    """Tell what each call moves in the device's memory: a copy may go over the bus."""
    return None if any(name.startswith(_COPY) for name in one.launched) else traffic_of(*key)


def _of_memory(gb_per_s: float, peaks: DevicePeaks | None) -> float | None:
    """What a rate reaches of the memory's; None where a cache held part of it, and no roofline applies."""
    share = None if peaks is None else 100 * gb_per_s / peaks.memory_gb_per_s
    return None if share is None or share > 100 else share


def _row(
    key: Key, one: _Sums, work: Work | None, moved: Moved | None, peaks: DevicePeaks | None
) -> OperatorShapes:
    name, inputs = key
    achieved = work.flop * one.calls / one.device / 1e3 if work is not None and one.device else None
    bytes_ = work.bytes if work is not None else moved[1] if moved is not None else None
    rate = bytes_ * one.calls / one.device if bytes_ is not None and one.device else None
    peak = _peak(work, _tensor_cores(one), peaks)
    bound, attainable, share = None, peak, None
    if peaks is not None and peak is not None and work is not None and work.bytes:
        by_memory = work.flop / work.bytes * peaks.memory_gb_per_s / 1e3
        bound = "compute" if by_memory >= peak else "memory"
        attainable = min(peak, by_memory)
    if work is not None and not work.at_most and achieved is not None and attainable is not None:
        share = 100 * achieved / attainable
    if work is None and rate is not None:
        bound, share = "memory", _of_memory(rate, peaks)
    return OperatorShapes(
        name=name,
        shapes=[list(shape) for shape in inputs.shapes],
        types=list(inputs.types),
        calls=one.calls,
        host_total_us=one.host / 1e3,
        device_total_us=one.device / 1e3,
        device_self_us=one.own / 1e3,
        flop_per_call=work.flop if work is not None else None,
        tflop_per_s=achieved,
        peak_tflop_per_s=peak,
        bytes_per_call=bytes_,
        gb_per_s=rate,
        bound=bound,
        roofline_pct=share,
    )


def _tensor_cores(one: _Sums) -> set[bool]:
    """What the names of its kernels tell of tensor cores, each answer once."""
    told = map(uses_tensor_cores, one.launched)
    return {uses for uses in told if uses is not None}


def _peak(work: Work | None, tensor_cores: set[bool], peaks: DevicePeaks | None) -> float | None:
    """Choose the peak for the type of a product; single precision has two, and none where kernels differ."""
    if work is None or work.type is None or peaks is None:
        return None
    if work.type == "float32":
        if len(tensor_cores) != 1:
            return None
        return peaks.tflop_per_s.get("tf32" if True in tensor_cores else "float32")
    return peaks.tflop_per_s.get(work.type)
