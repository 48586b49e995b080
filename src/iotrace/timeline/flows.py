"""The arrows of each delivered batch: from its costliest read over the ready batch to its step."""

from __future__ import annotations

from bisect import bisect_left

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.rank import RankAnalysis
from iotrace.sources.session import Rank
from iotrace.timeline.model import Arrow, Slice, Timeline


def batch_arrows(
    analysis: RankAnalysis,
    steps: dict[int, Slice],
    ready: dict[tuple[int, int], Slice],
    timeline: Timeline,
) -> list[Arrow]:
    """Per delivered batch: its costliest read, the ready batch, the step that trained on it."""
    rank = analysis.rank
    reads = _reads_by_process(rank, timeline)
    arrows = []
    for loader in analysis.loaders:
        for delivery in loader.deliveries:
            batch = ready.get((loader.number, delivery.number))
            if batch is None:
                continue
            read = _costliest(reads.get(delivery.pid or rank.main.pid, []), delivery)
            opens = loader is analysis.primary and not analysis.loop.marked
            step = steps.get(delivery.number) if opens else None
            stops = [item for item in (read, batch, step) if item is not None and item.end_ns > item.start_ns]
            if len(stops) > 1:
                arrows.append(Arrow(f"batch {delivery.index}", [(item, item.start_ns) for item in stops]))
    return arrows


def _reads_by_process(rank: Rank, timeline: Timeline) -> dict[int, list[Slice]]:
    """Per pid the slices that read, in order of time: POSIX reads and read paths."""
    found = {}
    for process, tracks in zip(rank.processes, timeline.processes, strict=True):
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
    """The longest read inside the batch's production: a read path, which holds its calls, if there is one."""
    if delivery.taken_ns is None or delivery.prepared_ns is None:
        return None
    first = bisect_left(reads, delivery.taken_ns, key=lambda item: item.start_ns)
    last = bisect_left(reads, delivery.prepared_ns, key=lambda item: item.start_ns)
    return max(reads[first:last], key=lambda item: item.end_ns - item.start_ns, default=None)
