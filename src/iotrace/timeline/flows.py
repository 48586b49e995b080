"""Flows of a timeline: of each batch from its costliest read to the wait for it; of zarr to its chunks."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

import numpy as np

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.rank import RankAnalysis
from iotrace.timeline.model import CALL, Flow, ProcessTracks, Slice, Timeline

DeliveryKey = tuple[int, int]  # loader, and number of the delivery

_ZARR_ACCESS = "zarr.Array.__getitem__"


def batch_flows(
    analysis: RankAnalysis,
    arrivals: dict[DeliveryKey, Slice],
    ready: dict[DeliveryKey, Slice],
    timeline: Timeline,
) -> list[Flow]:
    """Make a flow per delivered batch: its costliest read, the ready batch, the wait that it ended.

    `arrivals` has the slice of each wait, or of the part of it that followed the batch's production.
    """
    reads = _reads_by_process(analysis, timeline)
    flows = []
    shown: dict[int, list[int]] = defaultdict(list)
    for loader_number, number in ready:
        shown[loader_number].append(number)
    for loader in analysis.loaders:
        for delivery in loader.deliveries[np.array(sorted(shown[loader.number]), np.int64)]:
            batch = ready.get((loader.number, delivery.number))
            if batch is None:
                continue
            read = _costliest(reads.get(delivery.pid or analysis.rank.main.pid, []), delivery)
            wait = arrivals.get((loader.number, delivery.number))
            stops = [item for item in (read, batch, wait) if item is not None and item.end_ns > item.start_ns]
            if len(stops) > 1:
                times = [item.start_ns for item in stops[:-1]]
                # A wait that began before the batch was ready: the batch arrives within it.
                times.append(max(stops[-1].start_ns, *times))
                flows.append(Flow(f"batch {delivery.index}", list(zip(stops, times, strict=True))))
    return flows


def _reads_by_process(analysis: RankAnalysis, timeline: Timeline) -> dict[int, list[Slice]]:
    """Find per pid the slices that read, in order of time: POSIX reads and read paths."""
    found = {}
    for process, tracks in zip(analysis.rank.processes, timeline.processes, strict=True):
        slices = [
            item
            for track in tracks.tracks
            for item in track.slices
            if item.end_ns > item.start_ns
            and (item.category == "read path" or (item.category == "POSIX" and "read" in item.name))
        ]
        found[process.pid] = sorted(slices, key=lambda item: item.start_ns)
    return found


def _costliest(reads: list[Slice], delivery: Delivery) -> Slice | None:
    """Find the longest read inside the batch's production: a read path, which holds its calls, if any."""
    if delivery.taken_ns is None or delivery.prepared_ns is None:
        return None
    first = bisect_left(reads, delivery.taken_ns, key=lambda item: item.start_ns)
    last = bisect_left(reads, delivery.prepared_ns, key=lambda item: item.start_ns)
    return max(reads[first:last], key=lambda item: item.end_ns - item.start_ns, default=None)


def chunk_flows(process: ProcessTracks) -> list[Flow]:
    """Make a flow from each access of a zarr array to each chunk: zarr 3 reads them on threads of its own.

    It ends at the first read (else the open) of the chunk's file by another thread, within the access.
    """
    accesses = [
        (item, track.tid)
        for track in process.tracks
        for item in track.slices
        if item.args is not None and item.args.get(CALL) == _ZARR_ACCESS
    ]
    if not accesses:
        return []
    # Perfetto binds no flow to a slice without length.
    calls = sorted(
        (
            (item, track.tid)
            for track in process.tracks
            for item in track.slices
            if item.category == "POSIX" and item.end_ns > item.start_ns and _preference(item) is not None
        ),
        key=lambda call: call[0].start_ns,
    )
    flows = []
    for access, tid in accesses:
        first = bisect_left(calls, access.start_ns, key=lambda call: call[0].start_ns)
        last = bisect_left(calls, access.end_ns, key=lambda call: call[0].start_ns)
        below = f"{(access.args or {})['file']}/"
        chosen: dict[str, Slice] = {}
        for call, call_tid in calls[first:last]:
            file = str((call.args or {})["file"])
            if call_tid != tid and file.startswith(below):
                best = chosen.get(file)
                if best is None or (_preference(call) or 0) < (_preference(best) or 0):
                    chosen[file] = call
        flows += [
            Flow("chunk", [(access, access.start_ns), (call, call.start_ns)]) for call in chosen.values()
        ]
    return flows


def _preference(call: Slice) -> int | None:
    """Rank the calls at which a flow may end: a read before an open; nothing else is an end."""
    if "read" in call.name:
        return 0
    return 1 if "open" in call.name else None
