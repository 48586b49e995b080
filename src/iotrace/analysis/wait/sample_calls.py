"""What the making of a sample calls: the function, the regions in it, libraries, opens, reads, closes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from iotrace.analysis.results import SampleCall
from iotrace.analysis.wait.page_faults import bounds
from iotrace.analysis.wait.production import of_kinds
from iotrace.session.names import (
    KIND_CALLBACK,
    KIND_COLLATE,
    KIND_DFTRACER,
    KIND_ITEM,
    KIND_MAPPED,
    KIND_READ_PATH,
    KIND_REGION,
)
from iotrace.sources.dftracer import stdio
from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.processes import Process
from iotrace.sources.session import Rank, Session

# A thread of a library makes the items, and the loop only asks for them; otherwise the asking makes them.
_IN_THREADS, _ASKED = (KIND_CALLBACK, KIND_COLLATE), (KIND_ITEM, KIND_COLLATE)
_HELD = (KIND_REGION, KIND_DFTRACER, KIND_READ_PATH, KIND_MAPPED)
_MOST = 200_000  # calls of a thread that are looked at
_DEEPEST = 12
_LEAST = 1e-4  # of the time of the outermost call
_MOST_ROWS = 64


class _Call(msgspec.Struct):
    count: int = 0
    wall_ns: int = 0
    inner_ns: int = 0


_Path = tuple[str, ...]


def sample_calls(session: Session, rank: Rank) -> list[SampleCall]:
    """Nest the calls that make the rank's samples, over the whole run; the longest of each level first."""
    found: dict[_Path, _Call] = {}
    in_threads = any(of_kinds(process.spans, KIND_CALLBACK).any() for process in rank.processes)
    roots = _IN_THREADS if in_threads else _ASKED
    for process in rank.processes:
        if of_kinds(process.spans, *roots).any():
            _add(process, roots, session.calls_of(process), found)
    # Nothing but the functions themselves is known of them: that is no table.
    if all(len(path) == 1 for path in found):
        return []
    return list(_rows(found, ()))[:_MOST_ROWS]


def _rows(found: dict[_Path, _Call], above: _Path) -> Iterable[SampleCall]:
    level = [path for path in found if path[:-1] == above]
    for path in sorted(level, key=lambda path: -found[path].wall_ns):
        call, root = found[path], found[path[:1]]
        if call.wall_ns < _LEAST * root.wall_ns:
            continue
        yield SampleCall(
            name=path[-1],
            depth=len(path) - 1,
            count=call.count,
            per_sample=call.count / root.count,
            ms_each=call.wall_ns / call.count / 1e6,
            own_ms_each=max(0, call.wall_ns - call.inner_ns) / call.count / 1e6,
        )
        yield from _rows(found, path)


def _add(process: Process, roots: tuple[int, ...], calls: PosixCalls, found: dict[_Path, _Call]) -> None:
    """Add one process's calls: each belongs to the one that holds it on its thread."""
    spans = process.spans[of_kinds(process.spans, *roots, *_HELD)]
    is_root = of_kinds(spans, *roots)
    _, held = stdio.nested(calls)
    calls = calls.where(~held)
    starts, ends = bounds(spans)
    for tid in np.unique(spans["tid"][is_root]).tolist():
        own, called = spans["tid"] == tid, calls.tid == tid
        begin = np.concatenate((starts[own], calls.start_ns[called]))
        end = np.concatenate((ends[own], calls.end_ns[called]))
        names = [process.texts.get(name, "?") for name in spans["name"][own].tolist()]
        names += [calls.names[name] for name in calls.name[called].tolist()]
        counts = [1] * int(own.sum()) + calls.calls[called].tolist()
        begins = is_root[own].tolist() + [False] * int(called.sum())
        order = np.lexsort((-end, begin))[:_MOST].tolist()
        within: list[tuple[int, _Path]] = []
        for row, start, until in zip(order, begin[order].tolist(), end[order].tolist(), strict=True):
            while within and within[-1][0] <= start:
                within.pop()
            if not (within or begins[row]) or len(within) == _DEEPEST:
                continue
            above = within[-1][1] if within else ()
            path = (*above, names[row])
            call = found.setdefault(path, _Call())
            call.count += counts[row]
            call.wall_ns += until - start
            if above:
                found[above].inner_ns += until - start
            within.append((until, path))
