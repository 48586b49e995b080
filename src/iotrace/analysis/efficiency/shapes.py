"""Operators by the shapes of their inputs: what each cost, FLOP/s, how near the roofline."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from iotrace.analysis.device.kernels import Window, uses_tensor_cores
from iotrace.analysis.efficiency.flops import Work, work_of
from iotrace.analysis.results import DevicePeaks, OperatorShapes
from iotrace.sources.kineto.details import Inputs
from iotrace.sources.kineto.trace import Column

_MOST_SHAPES = 100


class _Sums(msgspec.Struct):
    """Sums of the calls of an operator with one kind of inputs, in ns.

    `tensor_cores`: what its kernels' names tell of them, each answer once.
    """

    calls: int = 0
    host: int = 0
    device: int = 0
    tensor_cores: set[bool] = msgspec.field(default_factory=set)


def shapes_of(windows: Sequence[Window], peaks: DevicePeaks | None) -> list[OperatorShapes]:
    """Sum up operators by name and inputs, the costliest for the device first; empty without shapes."""
    sums: dict[tuple[str, Inputs], _Sums] = {}
    for window in windows:
        if window.details.has_shapes:
            _add(sums, window)
    costliest = sorted(sums, key=lambda key: (-sums[key].device, -sums[key].host, key[0]))
    # Every product and attention is listed: their sums tell what the device did in all.
    works = {key: work_of(*key) for key in costliest}
    kept = [key for at, key in enumerate(costliest) if at < _MOST_SHAPES or works[key] is not None]
    return [_row(key, sums[key], works[key], peaks) for key in kept]


def _add(sums: dict[tuple[str, Inputs], _Sums], window: Window) -> None:
    tree, trace = window.tree, window.activity.trace
    events = trace.events
    outermost = np.flatnonzero(tree.outermost)
    rows = tree.rows[outermost]
    if not len(rows):
        return
    names, numbers = events.name[rows].astype(np.int64), events.details[rows].astype(np.int64)
    keys, group = np.unique(names * (len(trace.details) + 1) + numbers, return_inverse=True)
    columns = [
        np.bincount(group, weights=weights, minlength=len(keys)).astype(np.int64).tolist()
        for weights in (np.ones(len(rows)), events.duration_ns[rows], tree.device_total[outermost])
    ]
    tensor_cores = _tensor_cores(window, outermost, group, len(keys))
    for at, key in enumerate(keys.tolist()):
        name, number = divmod(key, len(trace.details) + 1)
        inputs = window.details.inputs(number)
        if inputs is None or not any(inputs.shapes):
            continue
        one = sums.setdefault((trace.names[name], inputs), _Sums())
        one.calls += columns[0][at]
        one.host += columns[1][at]
        one.device += columns[2][at]
        one.tensor_cores |= tensor_cores[at]


def _tensor_cores(window: Window, outermost: Column, group: Column, count: int) -> list[set[bool]]:
    """Tell per group whether kernels that its operators themselves launched use tensor cores."""
    tree, trace = window.tree, window.activity.trace
    groups = np.full(len(tree.rows) + 1, -1, dtype=np.int64)
    groups[outermost] = group
    rows = np.flatnonzero(tree.launcher >= 0)
    own = groups[tree.launcher[rows]]
    found: list[set[bool]] = [set() for _ in range(count)]
    pairs = np.unique(own[own >= 0] * len(trace.names) + trace.events.name[rows][own >= 0])
    for pair in pairs.tolist():
        at, name = divmod(pair, len(trace.names))
        uses = uses_tensor_cores(trace.names[name])
        if uses is not None:
            found[at].add(uses)
    return found


def _row(key: tuple[str, Inputs], one: _Sums, work: Work | None, peaks: DevicePeaks | None) -> OperatorShapes:
    name, inputs = key
    achieved = work.flop * one.calls / one.device / 1e3 if work is not None and one.device else None
    peak = _peak(work, one.tensor_cores, peaks)
    bound, attainable = None, peak
    if peaks is not None and peak is not None and work is not None and work.bytes:
        by_memory = work.flop / work.bytes * peaks.memory_gb_per_s / 1e3
        bound = "compute" if by_memory >= peak else "memory"
        attainable = min(peak, by_memory)
    share = None
    if work is not None and not work.at_most and achieved is not None and attainable is not None:
        share = 100 * achieved / attainable
    return OperatorShapes(
        name=name,
        shapes=[list(shape) for shape in inputs.shapes],
        types=list(inputs.types),
        calls=one.calls,
        host_total_us=one.host / 1e3,
        device_total_us=one.device / 1e3,
        flop_per_call=work.flop if work is not None else None,
        tflop_per_s=achieved,
        peak_tflop_per_s=peak,
        bound=bound,
        roofline_pct=share,
    )


def _peak(work: Work | None, tensor_cores: set[bool], peaks: DevicePeaks | None) -> float | None:
    """Choose the peak for the type of a product; single precision has two, and none where kernels differ."""
    if work is None or work.type is None or peaks is None:
        return None
    if work.type == "float32":
        if len(tensor_cores) != 1:
            return None
        return peaks.tflop_per_s.get("tf32" if True in tensor_cores else "float32")
    return peaks.tflop_per_s.get(work.type)
