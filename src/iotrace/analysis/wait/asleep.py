"""When the training thread is in ``time.sleep``, and where: by looks at it, each from the one before."""

from __future__ import annotations

import numpy as np

from iotrace.analysis.intervals import Intervals, intersect, length, subtract, union
from iotrace.analysis.rank import RankAnalysis
from iotrace.session import names
from iotrace.sources.columns import Columns


def asleep(analysis: RankAnalysis) -> Intervals:
    """When the training thread was seen asleep, in the program's code or a library's: from look to look."""
    rows, main = _looks(analysis), analysis.rank.main
    ends = np.asarray(main.clock.times_to_session_ns(rows["start_ns"]), np.int64)
    return union(ends - rows["waited_ns"], ends)


def sleep_outside_waits(analysis: RankAnalysis) -> tuple[float, str]:
    """How long it sleeps in a measured step outside of its data waits, in ms, and where it mostly does."""
    kept, rows = analysis.kept, _looks(analysis)
    if not len(kept) or not len(rows):
        return 0.0, ""
    waits = union(kept.awaited["wait_start_ns"], kept.awaited["delivered_ns"])
    found = subtract(intersect(asleep(analysis), union(kept["start_ns"], kept["end_ns"])), waits)
    slept = np.bincount(rows["file"], rows["waited_ns"])
    _, _, place = analysis.rank.main.texts[int(slept.argmax())].split(":", 2)
    file, _, line = place.rpartition(":")
    return length(found) / len(kept) / 1e6, f"{analysis.session.paths.shown(file)}:{line}"


def _looks(analysis: RankAnalysis) -> Columns:
    thread, main = analysis.loop.thread, analysis.rank.main
    rows = main.rows(names.LOCKED_ROW)
    sleeps = [number for number, text in main.texts.items() if text.startswith(names.SLEEP_AT)]
    found: Columns = rows[
        np.isin(rows["file"], sleeps) & (rows["tid"] == (-1 if thread is None else thread.tid))
    ]
    return found
