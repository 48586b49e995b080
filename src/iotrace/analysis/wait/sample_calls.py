"""What the making of a sample calls: the function, the regions in it, libraries, opens, reads, closes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import distinct
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
from iotrace.sources.posix_calls import PosixCalls, Times
from iotrace.sources.processes import Process
from iotrace.sources.session import Rank, Session

# A thread of a library makes the items, and the loop only asks for them; otherwise the asking makes them.
_IN_THREADS, _ASKED = (KIND_CALLBACK, KIND_COLLATE), (KIND_ITEM, KIND_COLLATE)
_HELD = (KIND_REGION, KIND_DFTRACER, KIND_READ_PATH, KIND_MAPPED)
_MOST = 2_000_000  # calls of a thread that are looked at
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
    numbers: dict[str, int] = {}
    of_spans = _numbered(spans["name"], lambda name: process.texts.get(name, "?"), numbers)
    of_calls = _numbered(calls.name, lambda name: calls.names[name], numbers)
    for tid in distinct(spans["tid"][is_root]).tolist():
        own, called = spans["tid"] == tid, calls.tid == tid
        begin = np.concatenate((starts[own], calls.start_ns[called]))
        end = np.concatenate((ends[own], calls.end_ns[called]))
        order = np.lexsort((-end, begin))[:_MOST]
        _nest(
            begin[order],
            end[order],
            np.concatenate((of_spans[own], of_calls[called]))[order],
            np.concatenate((np.ones(own.sum(), np.int64), calls.calls[called]))[order],
            np.concatenate((is_root[own], np.zeros(called.sum(), np.bool_)))[order],
            list(numbers),
            found,
        )


def _numbered(names: Times, text: Callable[[int], str], numbers: dict[str, int]) -> Times:
    """Number names alike that say the same."""
    each, rows = np.unique(names, return_inverse=True)
    return np.array([numbers.setdefault(text(name), len(numbers)) for name in each.tolist()], np.int64)[rows]


def _nest(
    begin: Times,
    end: Times,
    name: Times,
    count: Times,
    is_root: npt.NDArray[np.bool_],
    texts: Sequence[str],
    found: dict[_Path, _Call],
) -> None:
    """Add calls of one thread, in the order of their beginning, level by level from the outermost."""
    took_ns, above = end - begin, np.zeros(len(begin), np.int64)
    may_be = is_root
    paths: list[_Path] = [()]
    for _ in range(_DEEPEST):
        latest = np.maximum.accumulate(np.where(may_be, end, 0))
        tops = np.flatnonzero(may_be & (begin >= np.append(0, latest[:-1])))
        if not len(tops):
            return
        alike, path = np.unique(above[tops] * len(texts) + name[tops], return_inverse=True)
        counts, walls = (np.bincount(path, weights=each[tops]) for each in (count, took_ns))
        ways: list[_Path] = []
        for which, times, wall in zip(alike.tolist(), counts.tolist(), walls.tolist(), strict=True):
            holder = paths[which // len(texts)]
            ways.append((*holder, texts[which % len(texts)]))
            call = found.setdefault(ways[-1], _Call())
            call.count += int(times)
            call.wall_ns += int(wall)
            if holder:
                found[holder].inner_ns += int(wall)
        rest = np.setdiff1d(np.arange(len(begin)), tops, assume_unique=True)
        by = np.searchsorted(tops, rest) - 1
        within = (by >= 0) & (begin[rest] < end[tops[by]])
        rest, by = rest[within], by[within]
        end = np.minimum(end[rest], end[tops[by]])
        begin, name, count, took_ns = begin[rest], name[rest], count[rest], took_ns[rest]
        above, paths, may_be = path[by], ways, np.ones(len(rest), np.bool_)
