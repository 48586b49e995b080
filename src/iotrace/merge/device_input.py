"""What is derived of the devices in a trace of torch.profiler, as one more batch of its events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.device.accelerator import KERNEL_GAP_US, waits_of
from iotrace.analysis.device.activity import Activity
from iotrace.errors import TraceError
from iotrace.merge.session_input import metadata_event
from iotrace.sources.chrome.batch import EventBatch
from iotrace.sources.kineto.reader import read_kineto
from iotrace.timeline.device import derived_of
from iotrace.timeline.events import Threads, batched, batches_of
from iotrace.timeline.model import ProcessTracks, Timeline


def device_batches(path: Path, with_rank: bool) -> Iterator[EventBatch]:
    """Yield idle times, modules and launch queue of each device; times count from where the file's do.

    `with_rank` puts the trace's rank before the names of tracks that are pinned.
    """
    try:
        trace = read_kineto(path)
    except TraceError:  # the merge itself says what is damaged
        return
    events = replace(trace.events, start_ns=trace.events.start_ns - (trace.base_ns or 0))
    activity = Activity(replace(trace, events=events))
    if not activity.device.any():
        return
    prefix = f"rank {trace.rank} · " if with_rank and trace.rank is not None else ""
    pids = list(dict.fromkeys(pid for pid, _ in trace.threads))
    numbers = np.array([pids.index(pid) for pid, _ in trace.threads], dtype=np.int64)
    owner = numbers[events.thread]
    derived = derived_of(activity, waits_of(activity), KERNEL_GAP_US, owner, prefix)
    timeline = Timeline(0, [ProcessTracks("", "", *derived[number]) for number in derived])
    threads: Threads = [
        (pids[number], [(track.name, track.slices) for track in own.tracks])
        for number, own in derived.items()
    ]
    names = (
        metadata_event(pid, "thread_sort_index", {"sort_index": order - len(tracks)}, name)
        for pid, tracks in threads
        for order, (name, _) in enumerate(tracks)
    )
    yield from batched((event, 0, 0) for event in names)
    yield from batches_of(timeline, threads, first_flow=0)
