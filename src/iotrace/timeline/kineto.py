"""A rank's torch.profiler traces on its timeline: operators by thread, kernels by stream, and their arrows.

Arrows are made anew from correlations, as the traces' own also point at calls that launched nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.modules import backward_ranges
from iotrace.sources.kineto.kinds import FORWARD_BACKWARD, Kind
from iotrace.sources.kineto.trace import Column
from iotrace.timeline.model import Arrow, ProcessTracks, Slice, Timeline, Track

_CATEGORIES = {
    Kind.KERNEL: "kernel",
    Kind.MEMCPY: "memcpy",
    Kind.MEMSET: "memset",
    Kind.RUNTIME: "runtime",
    Kind.CPU_OP: "operator",
    Kind.ANNOTATION: "range",
    Kind.GPU_ANNOTATION: "range",
    Kind.PYTHON: "python",
}
_HOST = (Kind.RUNTIME, Kind.CPU_OP, Kind.ANNOTATION, Kind.PYTHON)
_DEVICE = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.GPU_ANNOTATION)


def add_torch(
    timeline: Timeline, main: ProcessTracks, title: str, pid: int, windows: Sequence[Activity]
) -> None:
    """Add what `windows` hold: the host's part to `main` (of process `pid`), a process for each device."""
    host: dict[str, list[Slice]] = defaultdict(list)
    device: dict[int, dict[str, list[Slice]]] = defaultdict(lambda: defaultdict(list))
    for window in windows:
        slices = _slices(window)
        _place_host(window, slices, pid, host)
        _place_backward(window, pid, host)
        _place_device(window, slices, device)
        timeline.arrows += _launches(window, slices) + _backward(window, slices)
    main.tracks += [Track(name, host[name]) for name in sorted(host)]
    for number in sorted(device):
        tracks = device[number]
        label = f"GPU {number}" if number >= 0 else "GPU"
        timeline.processes.append(
            ProcessTracks(f"{title} · {label}", "", [Track(name, tracks[name]) for name in sorted(tracks)])
        )


def _slices(window: Activity) -> dict[int, Slice]:
    """A slice for every event that lasted and is shown, by its row."""
    trace, events = window.trace, window.trace.events
    rows = np.flatnonzero(np.isin(window.kinds, (*_HOST, *_DEVICE)))
    columns = zip(
        rows.tolist(),
        events.start_ns[rows].tolist(),
        events.end_ns[rows].tolist(),
        events.name[rows].tolist(),
        window.kinds[rows].tolist(),
        events.correlation[rows].tolist(),
        events.sequence[rows].tolist(),
        events.bytes[rows].tolist(),
        events.collective[rows].tolist(),
        strict=True,
    )
    found = {}
    for row, start, end, name, kind, correlation, sequence, size, collective in columns:
        args: dict[str, Any] = {}
        if correlation >= 0:
            args["correlation"] = correlation
        if sequence >= 0:
            args["sequence"] = sequence
        if size >= 0:
            args["bytes"] = size
        if collective >= 0:
            told = trace.collectives[collective]
            facts = {"elements": told.elements, "group": told.group, "collective sequence": told.sequence}
            args.update({key: value for key, value in facts.items() if value is not None})
        found[row] = Slice(start, end, trace.names[name], _CATEGORIES[Kind(kind)], args or None)
    return found


def _place_host(window: Activity, slices: dict[int, Slice], pid: int, tracks: dict[str, list[Slice]]) -> None:
    threads = window.trace.threads
    shown = np.isin(window.kinds, _HOST)
    # Threads of a process group's backend do nothing else.
    others = set(np.unique(window.trace.events.thread[shown & ~window.collective_ranges]).tolist())
    for row in np.flatnonzero(shown).tolist():
        number = int(window.trace.events.thread[row])
        tid = threads[number][1]
        name = "torch" if number in others else "communication"
        tracks[name if tid == pid else f"{name} · thread {tid}"].append(slices[row])


def _place_backward(window: Activity, pid: int, tracks: dict[str, list[Slice]]) -> None:
    """The backward pass of each module: only forwards have ranges of their own in a trace."""
    for item in backward_ranges(window):
        tid = window.trace.threads[item.thread][1]
        name = "backward by module" if tid == pid else f"backward by module · thread {tid}"
        tracks[name].append(Slice(item.start_ns, item.end_ns, item.name, "backward"))


def _place_device(
    window: Activity, slices: dict[int, Slice], devices: dict[int, dict[str, list[Slice]]]
) -> None:
    rows = np.flatnonzero(np.isin(window.kinds, _DEVICE))
    streams, numbers = _streams(window, rows)
    collective = set(streams[window.collective_kernels[rows]].tolist())
    computing = set(streams[window.device[rows] & ~window.collective_kernels[rows]].tolist())
    for row, stream, device in zip(rows.tolist(), streams.tolist(), numbers.tolist(), strict=True):
        kind = " (communication)" if stream in collective - computing else ""
        name = f"stream {stream}{kind}" if stream >= 0 else "device"
        if window.kinds[row] == Kind.GPU_ANNOTATION:
            name = f"{name} · ranges"
        devices[device][name].append(slices[row])


def _streams(window: Activity, rows: Column) -> tuple[Column, Column]:
    """Stream and device of every row: ranges on the device tell theirs by thread and process alone."""
    events, threads = window.trace.events, window.trace.threads
    tids = np.array([tid if isinstance(tid, int) else -1 for _, tid in threads] or [-1], dtype=np.int64)
    pids = np.array([pid if isinstance(pid, int) else -1 for pid, _ in threads] or [-1], dtype=np.int64)
    thread = events.thread[rows]
    stream = np.where(events.stream[rows] >= 0, events.stream[rows], tids[thread])
    device = np.where(events.device[rows] >= 0, events.device[rows], pids[thread])
    return stream, device


def _launches(window: Activity, slices: dict[int, Slice]) -> list[Arrow]:
    """From each runtime call to what it launched."""
    rows = np.flatnonzero(window.launch >= 0)
    arrows = []
    for row, call in zip(rows.tolist(), window.launch[rows].tolist(), strict=True):
        arrow = _arrow("launch", slices[call], slices[row])
        if arrow is not None:
            arrows.append(arrow)
    return arrows


def _backward(window: Activity, slices: dict[int, Slice]) -> list[Arrow]:
    """From each forward operator to its backward operator, as the trace's own arrows say."""
    trace, flows = window.trace, window.trace.flows
    if FORWARD_BACKWARD not in trace.flow_categories:
        return []
    rows = np.fromiter(slices, dtype=np.int64, count=len(slices))
    # The last of several that begin together is the inner one.
    keys = zip(trace.events.thread[rows].tolist(), trace.events.start_ns[rows].tolist(), strict=True)
    begun = dict(zip(keys, rows.tolist(), strict=True))
    own = np.flatnonzero(flows.category == trace.flow_categories.index(FORWARD_BACKWARD))
    starts: dict[int, int] = {}
    arrows = []
    ends = []
    for place in own.tolist():
        row = begun.get((int(flows.thread[place]), int(flows.time_ns[place])))
        if row is None:
            continue
        if flows.phase[place] == ord("s"):
            starts[int(flows.flow[place])] = row
        else:
            ends.append((int(flows.flow[place]), row))
    for flow, row in ends:
        if flow in starts:
            arrow = _arrow("backward", slices[starts[flow]], slices[row])
            if arrow is not None:
                arrows.append(arrow)
    return arrows


def _arrow(name: str, source: Slice, target: Slice) -> Arrow | None:
    """An arrow that Perfetto binds to both: they lasted, and the target did not begin before the source."""
    lasted = source.end_ns > source.start_ns and target.end_ns > target.start_ns
    if not lasted or target.start_ns < source.start_ns:
        return None
    return Arrow(name, [(source, source.start_ns), (target, target.start_ns)], "torch")
