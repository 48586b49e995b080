"""What the making of batches was made of that the loop's own thread takes from a library or a generator."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.intervals import Coverage, Times, distinct, pieces
from iotrace.analysis.wait.file_costs import FILE_PARTS, FileCosts, FileNames
from iotrace.analysis.wait.page_faults import bounds
from iotrace.analysis.wait.production import PARTS, Composition, compose, outermost_of
from iotrace.session.names import KIND_CALLBACK, KIND_ITEM
from iotrace.sources.paths import Paths
from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.processes import Process

_READ, _TRANSFORM, _UNKNOWN = (PARTS.index(part) for part in ("read", "transform", "unknown"))


def compose_inline(
    process: Process,
    calls: PosixCalls,
    paths: Paths,
    starts: Times,
    ends: Times,
    tid: int,
    names: FileNames | None = None,
    ahead: frozenset[int] = frozenset(),
) -> Composition:
    """`compose` for batches that the consumer's thread `tid` took from a wrapped source.

    Calls of other threads do not count, but for those in functions that a library calls on its own threads.
    What else made the source wait, its prefetcher or another process, cannot be seen: blocked time that
    neither calls nor read paths explain, in which no such function runs, is `unknown`.
    """
    beside = _compose_other_threads(process, calls, paths, starts, ends, tid, names, ahead)
    spans = process.spans[process.spans["tid"] == tid]
    own = calls.where(calls.tid == tid)
    process = replace(process, spans=spans)
    made = compose(process, own, paths, starts, ends, inline=True, names=names, ahead=ahead)
    items = outermost_of(process, KIND_ITEM)
    piece_starts, piece_ends, item, window = pieces(*bounds(items), starts, ends)
    on_cpu = items["cpu_ns"] + np.maximum(items["run_delay_ns"], 0)
    off_cpu = np.where(items["voluntary_switches"] > 0, items["duration_ns"] - on_cpu, 0)
    share = (piece_ends - piece_starts) / np.maximum(items["duration_ns"][item], 1)
    blocked = np.zeros(len(starts))
    np.add.at(blocked, window, off_cpu[item] * share)
    unexplained = np.clip(blocked - made.parts[:, _READ], 0, made.parts[:, _TRANSFORM])
    transform = made.parts[:, _TRANSFORM]
    kept = np.divide(transform - unexplained, transform, out=np.ones(len(starts)), where=transform > 0)
    made.files.parts[:, FILE_PARTS.index("transform")] *= kept[made.files.owner]
    made.parts[:, _TRANSFORM] -= unexplained
    made.parts[:, _UNKNOWN] += unexplained
    if beside is None:
        return made
    share = np.divide(unexplained, ends - starts, out=np.zeros(len(starts)), where=ends > starts)
    explained = beside.parts * share[:, None]
    explained[:, _UNKNOWN] = 0
    made.parts[:, _UNKNOWN] -= explained.sum(axis=1)
    return replace(
        made,
        parts=made.parts + explained,
        files=FileCosts.of(made.files.names, [made.files, beside.files.scaled(share)]),
    )


def _compose_other_threads(
    process: Process,
    calls: PosixCalls,
    paths: Paths,
    starts: Times,
    ends: Times,
    tid: int,
    names: FileNames | None,
    ahead: frozenset[int],
) -> Composition | None:
    """Compose what functions did meanwhile that a library calls on other threads; None without any.

    A library whose batches lie ready calls none: it waits for room. So they run as long as they hold it up.
    """
    called = process.spans[(process.spans["kind"] == KIND_CALLBACK) & (process.spans["tid"] != tid)]
    if not len(called):
        return None
    tids = distinct(called["tid"])
    spans = process.spans[np.isin(process.spans["tid"], tids)]
    spans = spans.changed(kind=np.where(spans["kind"] == KIND_CALLBACK, KIND_ITEM, spans["kind"]))
    inside = calls.where(np.isin(calls.tid, tids))
    within = Coverage(*bounds(called))
    inside = inside.where(within.within(inside.start_ns, inside.end_ns) > 0)
    made = compose(
        replace(process, spans=spans), inside, paths, starts, ends, inline=True, names=names, ahead=ahead
    )
    # Between two calls of a window nothing ran.
    idle = (ends - starts) - within.within(starts, ends)
    made.parts[:, _TRANSFORM] -= np.minimum(
        np.maximum(idle - made.parts[:, _UNKNOWN], 0), made.parts[:, _TRANSFORM]
    )
    return made
