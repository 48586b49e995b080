"""A session's timeline as Chrome JSON, as Perfetto imports it without loss.

Times are us with three decimals since `base_ns`: small numbers, so that a double holds every ns.
Processes and threads get dense numbers, flows ids; flows end on the enclosing slice.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from isal import igzip

from iotrace.timeline.build import Threads, make_batches
from iotrace.timeline.model import Timeline
from iotrace.timeline.writers.chrome_json import join, lines_at, opening
from iotrace.timeline.writers.id_map import Process, Thread
from tests.support.lanes import lanes

_open: Any = igzip.open  # isal has no annotations
_FASTEST = 0  # isal's levels are 0 to 3
_FIRST_TID = 1001  # above the numbers of processes: no thread is taken for a main one


def write_chrome(timeline: Timeline, path: Path) -> None:
    """Write `timeline` to `path` (``.json.gz``), whole or not at all."""
    temporary = path.with_name(f".{path.name}.partial")
    processes, threads = _numbered(timeline)
    try:
        with _open(temporary, "wb", compresslevel=_FASTEST) as file:
            file.write(opening(timeline.base_ns))
            for batch in make_batches(timeline, threads, first_flow=1):
                durations = np.where(batch.has_duration, batch.duration_ns, -1)
                file.write(lines_at(batch, batch.start_ns - timeline.base_ns, durations))
            join((), processes, timeline.base_ns, {}, file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _numbered(timeline: Timeline) -> tuple[list[Process], Threads]:
    """Give numbers to the processes, and to each lane of their tracks."""
    tids = count(_FIRST_TID)
    processes: list[Process] = []
    threads: Threads = []
    for pid, process in enumerate(timeline.processes, start=1):
        made = Process(pid, process.name, process.labels, (), order=pid)
        processes.append(made)
        threads.append((pid, []))
        for track in process.tracks:
            for number, lane in enumerate(lanes(track.slices)):
                tid = next(tids)
                name = f"{track.name} +{number}" if number else track.name
                made.threads.append(Thread(pid, tid, name, order=tid))
                threads[-1][1].append((tid, lane))
    return processes, threads
