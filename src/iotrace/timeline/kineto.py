"""A rank's torch.profiler traces on its timeline: operators by thread, kernels by stream, and their flows.

Flows are made from correlations: the flows in the traces also lead to calls that launched nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from iotrace.analysis.device.accelerator import KERNEL_GAP_US
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.compute import Compute
from iotrace.analysis.device.modules import backward_ranges
from iotrace.sources.kineto.kinds import FORWARD_BACKWARD, Kind
from iotrace.sources.kineto.trace import Column
from iotrace.timeline.device import Derived, derive_tracks
from iotrace.timeline.model import TORCH, Args, Flow, ProcessTracks, Slice, Timeline, Track, known

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
_SHOWN = ("start_ns", "end_ns", "name", "correlation", "sequence", "bytes", "collective")  # of an event
_HOST = (Kind.RUNTIME, Kind.CPU_OP, Kind.ANNOTATION, Kind.PYTHON)
_DEVICE = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.GPU_ANNOTATION)


def add_torch(
    timeline: Timeline,
    main: ProcessTracks,
    title: str,
    pid: int,
    compute: Compute,
    kernel_gap_us: float = KERNEL_GAP_US,
    prefix: str = "",
) -> None:
    """Add what a rank's traces hold: the host's part to `main` (of process `pid`), a process for each device.

    `prefix` begins the names of tracks that are pinned.
    """
    host: dict[str, list[Slice]] = defaultdict(list)
    device: dict[int, dict[str, list[Slice]]] = defaultdict(lambda: defaultdict(list))
    derived: dict[int, Derived] = {}
    for activity, waits in zip(compute.activities, compute.waits, strict=True):
        slices = _slices(activity)
        _add_host(activity, slices, pid, host)
        _add_backward(activity, pid, host)
        owner = _add_device(activity, slices, device)
        _join(derived, derive_tracks(activity, waits, kernel_gap_us, owner, prefix))
        timeline.flows += _launches(activity, slices) + _backward(activity, slices)
    main.tracks += [Track(name, host[name]) for name in sorted(host)]
    for number in sorted(device):
        tracks = device[number]
        label = f"GPU {number}" if number >= 0 else "GPU"
        above, counters = derived.get(number, Derived([], []))
        streams = [Track(name, tracks[name]) for name in sorted(tracks)]
        timeline.processes.append(ProcessTracks(f"{title} · {label}", "", [*above, *streams], counters))


def _join(derived: dict[int, Derived], more: dict[int, Derived]) -> None:
    """Append what another trace of the rank gives to the tracks and counters of the same names."""
    for number, (tracks, counters) in more.items():
        own = derived.setdefault(number, Derived([], []))
        for track in tracks:
            same = next((each for each in own.tracks if each.name == track.name), None)
            if same is None:
                own.tracks.append(track)
            else:
                same.slices += track.slices
        for counter in counters:
            before = next((each for each in own.counters if each.name == counter.name), None)
            if before is None:
                own.counters.append(counter)
            else:
                before.points += counter.points


def _slices(activity: Activity) -> dict[int, Slice]:
    """Make a slice of every event that lasted and is shown, by its row."""
    trace, events = activity.trace, activity.trace.events
    rows = np.flatnonzero(np.isin(activity.kinds, (*_HOST, *_DEVICE)))
    columns = [getattr(events, field)[rows].tolist() for field in _SHOWN]
    kinds = activity.kinds[rows].tolist()
    slices = {}
    for row, kind, start, end, name, correlation, sequence, size, collective in zip(
        rows.tolist(), kinds, *columns, strict=True
    ):
        args: Args = {}
        if correlation >= 0:
            args["correlation"] = correlation
        if sequence >= 0:
            args["sequence"] = sequence
        if size >= 0:
            args["bytes"] = size
        if collective >= 0:
            about = trace.collectives[collective]
            facts = {"elements": about.elements, "group": about.group, "collective sequence": about.sequence}
            args |= known(**facts)
        slices[row] = Slice(start, end, trace.names[name], _CATEGORIES[Kind(kind)], args or None)
    return slices


def _add_host(activity: Activity, slices: dict[int, Slice], pid: int, tracks: dict[str, list[Slice]]) -> None:
    threads = activity.trace.threads
    shown = np.isin(activity.kinds, _HOST)
    # Threads of a process group's backend do nothing else.
    others = set(np.unique(activity.trace.events.thread[shown & ~activity.collective_ranges]).tolist())
    for row in np.flatnonzero(shown).tolist():
        number = int(activity.trace.events.thread[row])
        tid = threads[number][1]
        tracks[_named("" if number in others else "communication", tid, pid)].append(slices[row])


def _add_backward(activity: Activity, pid: int, tracks: dict[str, list[Slice]]) -> None:
    """Add the backward pass of each module: only forwards have ranges in a trace."""
    for item in backward_ranges(activity):
        tid = activity.trace.threads[item.thread][1]
        tracks[_named("backward by module", tid, pid)].append(
            Slice(item.start_ns, item.end_ns, item.name, "backward")
        )


def _named(what: str, tid: int | str, pid: int) -> str:
    return " · ".join(filter(None, (TORCH, what, "" if tid == pid else f"thread {tid}")))


def _add_device(
    activity: Activity, slices: dict[int, Slice], devices: dict[int, dict[str, list[Slice]]]
) -> Column:
    """Add each event to its stream; returns per event of the trace its device."""
    rows = np.flatnonzero(np.isin(activity.kinds, _DEVICE))
    streams, numbers = _streams(activity, rows)
    collective = set(streams[activity.collective_kernels[rows]].tolist())
    computing = set(streams[activity.device[rows] & ~activity.collective_kernels[rows]].tolist())
    for row, stream, device in zip(rows.tolist(), streams.tolist(), numbers.tolist(), strict=True):
        kind = " (communication)" if stream in collective - computing else ""
        name = f"stream {stream}{kind}" if stream >= 0 else "device"
        if activity.kinds[row] == Kind.GPU_ANNOTATION:
            name = f"{name} · ranges"
        devices[device][name].append(slices[row])
    owner = np.full(len(activity.trace.events), -1, dtype=np.int64)
    owner[rows] = numbers
    return owner


def _streams(activity: Activity, rows: Column) -> tuple[Column, Column]:
    """Find stream and device of every row: ranges on the device have theirs as thread and process."""
    events, threads = activity.trace.events, activity.trace.threads
    tids = np.array([tid if isinstance(tid, int) else -1 for _, tid in threads] or [-1], dtype=np.int64)
    pids = np.array([pid if isinstance(pid, int) else -1 for pid, _ in threads] or [-1], dtype=np.int64)
    thread = events.thread[rows]
    stream = np.where(events.stream[rows] >= 0, events.stream[rows], tids[thread])
    device = np.where(events.device[rows] >= 0, events.device[rows], pids[thread])
    return stream, device


def _launches(activity: Activity, slices: dict[int, Slice]) -> list[Flow]:
    """Make flows from each runtime call to what it launched."""
    rows = np.flatnonzero(activity.launch >= 0)
    pairs = zip(activity.launch[rows].tolist(), rows.tolist(), strict=True)
    return _flows("launch", ((slices[call], slices[row]) for call, row in pairs))


def _backward(activity: Activity, slices: dict[int, Slice]) -> list[Flow]:
    """Make flows from each forward operator to its backward operator, as the flows of the trace say."""
    trace, ends = activity.trace, activity.trace.flows
    if FORWARD_BACKWARD not in trace.flow_categories:
        return []
    rows = np.fromiter(slices, dtype=np.int64, count=len(slices))
    # The last of several that begin together is the inner one.
    keys = zip(trace.events.thread[rows].tolist(), trace.events.start_ns[rows].tolist(), strict=True)
    begun = dict(zip(keys, rows.tolist(), strict=True))
    own = np.flatnonzero(ends.category == trace.flow_categories.index(FORWARD_BACKWARD))
    sources: dict[int, int] = {}
    targets: list[tuple[int, int]] = []
    for end in own.tolist():
        row = begun.get((int(ends.thread[end]), int(ends.time_ns[end])))
        if row is None:
            continue
        if ends.phase[end] == ord("s"):
            sources[int(ends.flow[end])] = row
        else:
            targets.append((int(ends.flow[end]), row))
    return _flows(
        "backward", ((slices[sources[flow]], slices[row]) for flow, row in targets if flow in sources)
    )


def _flows(name: str, ends: Iterable[tuple[Slice, Slice]]) -> list[Flow]:
    """Make the flows that Perfetto binds: both slices last, the target does not begin before the source."""
    return [
        Flow(name, [(source, source.start_ns), (target, target.start_ns)], "torch")
        for source, target in ends
        if source.end_ns > source.start_ns
        and target.end_ns > target.start_ns
        and target.start_ns >= source.start_ns
    ]
