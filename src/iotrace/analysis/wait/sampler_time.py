"""When samplers choose an epoch's first samples: as an iterator is made, or in the wait for the first batch.

A sampler that measures files there, or sorts all samples, makes each epoch late. No worker helps it.

Definitions: docs/definitions.md, "account".
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from iotrace.analysis.intervals import Intervals, Times, distinct, holding, union
from iotrace.analysis.loop.deliveries import PassKey
from iotrace.analysis.loop.iterations import Iterations, iterations_of
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import FEWEST_SAMPLES, SamplerWork
from iotrace.analysis.table import key_of
from iotrace.analysis.wait.hot_lines import Frame, Stack, StackSamples, stack_samples
from iotrace.sources.records import IteratorMade, IteratorStart, WorkerUp

_LEAST_NS = 10_000_000  # of one iterator: less is no work of a sampler that anybody would look for
_MOST = 0.5  # of the samples of a stack
# Behind these of torch's functions lies the sampler: its `__iter__`, or the `__next__` of what that returned.
_ASK = ("._next_index", "_BaseDataLoaderIter._reset", "_BaseDataLoaderIter.__init__")


class _Draw(NamedTuple):
    """A time in which a sampler may have chosen: `begun_ns` is when its iterator began to be made.

    `surely_ns`: from then on nothing else can have taken it; None: only samples of the stack tell.
    """

    start_ns: int
    end_ns: int
    row: int
    begun_ns: int
    surely_ns: int | None


def drawn(analysis: RankAnalysis, iterations: Iterations, *, awaited: bool = False) -> Times:
    """Find when first samples were chosen: start, end, number of the pass, when its making began.

    None of evaluations. Until the last index is sent the thread starts workers, or waits for the answers of
    those that persist: samples of its stack say which share is the sampler's. Without these it is from when
    all new workers have asked for work. `awaited`: without workers, too, in the wait for the first batch.
    """
    main, found = analysis.rank.main, list[_Draw]()
    starts = defaultdict[PassKey, list[IteratorStart]](list)
    for start in main.of_type(IteratorStart):
        starts[start.iterator, start.epoch].append(start)
    made = defaultdict[int, list[tuple[int, int]]](list)
    for record in main.of_type(IteratorMade):
        begun_ns = main.clock.to_session_ns(record.start_ns)
        made[record.iterator].append((begun_ns, begun_ns + record.duration_ns))
    sent, ups = _sent(iterations), _ups(analysis)
    for row, each in enumerate(iterations.passes):
        first = each.first
        if iterations.evaluate[row] or first is None or first.index or each.loader.description.iterable:
            continue
        if not each.workers:
            asked_ns = first.wait_start_ns
            if awaited and first.sampled_ns is not None:
                found.append(_Draw(asked_ns, asked_ns + first.sampled_ns, row, asked_ns, asked_ns))
            continue
        own = starts[each.iterator, first.epoch]
        spans = made[each.iterator]
        at = bisect_right(spans, (each.of.start_ns, sys.maxsize)) - 1
        sent_ns = None if at < 0 else _last_sent(sent[each.iterator, first.epoch], spans[at])
        if sent_ns is None or not own:
            continue
        begun_ns = spans[at][0]
        if any(start.generation for start in own):
            found.append(_Draw(begun_ns, sent_ns, row, begun_ns, None))
            continue
        works_ns, up_ns = main.clock.to_session_ns(min(start.mono_ns for start in own)), _all_up(ups, own)
        found.append(_Draw(begun_ns, works_ns, row, begun_ns, begun_ns))  # no workers yet: `iter(sampler)`
        surely_ns = sent_ns if up_ns is None else min(max(up_ns, works_ns), sent_ns)
        found.append(_Draw(works_ns, sent_ns, row, begun_ns, surely_ns))
    times = [each for each in _shared(analysis, iterations, found) if each[1] - each[0] >= _LEAST_NS]
    return np.array(sorted(times), np.int64).reshape(-1, 4)


def when(times: Times) -> Intervals:
    """Return the intervals of what `drawn` found."""
    return union(times[:, 0], times[:, 1])


def _sent(iterations: Iterations) -> dict[PassKey, Times]:
    """When the indices of each pass were sent."""
    found: dict[PassKey, Times] = {}
    for loader in {each.loader.number: each.loader for each in iterations.passes}.values():
        own = loader.deliveries
        keys = key_of(own["iterator"], own["epoch"])
        order = np.argsort(keys, kind="stable")
        first = np.flatnonzero(np.diff(keys[order], prepend=-1))
        for mine in np.split(order, first[1:]) if len(order) else []:
            found[int(own["iterator"][mine[0]]), int(own["epoch"][mine[0]])] = own["sent_ns"][mine]
    return found


def _last_sent(sent: Times, span: tuple[int, int]) -> int | None:
    """When the last index was sent as an iterator was made."""
    sent = sent[(sent >= span[0]) & (sent <= span[1])]
    return int(sent.max()) if len(sent) else None


def _ups(analysis: RankAnalysis) -> dict[int, int]:
    """When each worker asked for work."""
    found: dict[int, int] = {}
    for process in analysis.rank.workers:
        up = next(iter(process.of_type(WorkerUp)), None)
        if up is not None:
            found[process.pid] = process.clock.to_session_ns(up.mono_ns)
    return found


def _all_up(ups: dict[int, int], own: list[IteratorStart]) -> int | None:
    """When the last worker of an iterator asked for work; None where that is not known of each."""
    pids = {pid for start in own for pid in start.pids}
    return max(ups[pid] for pid in pids) if pids and pids <= ups.keys() else None


def _shared(
    analysis: RankAnalysis, iterations: Iterations, draws: list[_Draw]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield each time as far as it is the sampler's: by a loader's samples, where it has enough."""
    samples, unsure = loop_samples(analysis), defaultdict[int, list[_Draw]](list)
    for each in draws:
        if each.surely_ns == each.start_ns:
            yield each[:4]
        else:
            unsure[iterations.passes[each.row].loader.number].append(each)
    for own in unsure.values():
        spans = np.array([each[:2] for each in own if iterations.passes[each.row].is_later], np.int64)
        within = spans.reshape(-1, 2).T
        stacks = [] if samples is None else samples.chosen(holding(*union(*within), samples.times) >= 0).each
        share = sum(_in_sampler(stack) is not None for stack in stacks) / max(1, len(stacks))
        for each in own:
            is_sampled = len(stacks) >= FEWEST_SAMPLES and iterations.passes[each.row].is_later
            least_ns = each.end_ns if each.surely_ns is None else each.surely_ns
            start_ns = each.end_ns - int(share * (each.end_ns - each.start_ns)) if is_sampled else least_ns
            yield start_ns, each.end_ns, each.row, each.begun_ns


def loop_samples(analysis: RankAnalysis) -> StackSamples | None:
    """Read the samples of the loop's thread; None where it was not sampled at any time."""
    thread = analysis.loop.thread
    samples = None if thread is None else stack_samples(analysis.rank.main, thread.tid)
    return samples if samples is not None and samples.asked and len(samples.times) else None


def _in_sampler(stack: Stack) -> Stack | None:
    """Cut a stack to what torch's iterator calls of a sampler; None where it is in none."""
    asked = [at for at, frame in enumerate(stack.called) if frame.function.endswith(_ASK)]
    called = stack.called[asked[-1] + 1 :] if asked else ()
    return stack._replace(called=called) if any(frame.line for frame in called) else None


def samplers_of(analysis: RankAnalysis) -> tuple[dict[int, SamplerWork], Intervals]:
    """Say what samplers do before each later epoch, by the loader's number, and when as iterators are made.

    By samples of the stack. The first epoch does not count: the loop has not begun there.
    """
    if not len(analysis.loop.steps) or analysis.loop.thread is None:
        return {}, when(np.empty((0, 4), np.int64))
    iterations = iterations_of(analysis)
    times, samples = drawn(analysis, iterations, awaited=True), loop_samples(analysis)
    has_workers = np.array([each.workers > 0 for each in iterations.passes], np.bool_)
    rows = defaultdict[int, list[int]](list)
    for at, row in enumerate(times[:, 2].tolist()):
        if iterations.passes[row].is_later:
            rows[iterations.passes[row].loader.number].append(at)
    works = (
        {} if samples is None else {n: sampler_work(analysis, samples, times[own]) for n, own in rows.items()}
    )
    known = {number: work for number, work in works.items() if work is not None}
    return known, when(times[has_workers[times[:, 2]]])


def sampler_work(analysis: RankAnalysis, samples: StackSamples, times: Times) -> SamplerWork | None:
    """Name what takes these times of one loader; None where samples show no sampler of the program's."""
    passes = len({*times[:, 2].tolist()})
    inside = samples.chosen(holding(*when(times), samples.times) >= 0)
    stacks = [stack for each in inside.each if (stack := _in_sampler(each)) is not None]
    outer, inner = _functions(stacks)
    if outer is None:
        return None
    shown = analysis.session.paths.shown
    return SamplerWork(
        function=f"{outer.function} ({shown(outer.file)}:{outer.first_line})",
        inner=None if inner is None else f"{inner.function} ({shown(inner.file)}:{inner.first_line})",
        passes=passes,
        ms=int((times[:, 1] - times[:, 0]).sum()) / passes / 1e6,
        files=_files(analysis, times, passes),
    )


def _functions(stacks: list[Stack]) -> tuple[Frame | None, Frame | None]:
    """Find the program's outermost function that most stacks are in, and the innermost below it."""
    first, depths = Counter[Frame](), defaultdict[Frame, list[int]](list)
    for stack in stacks:
        own = [
            frame._replace(line=0, since=0)
            for frame in stack.called
            if frame.line and "<locals>" not in frame.function
        ]
        first.update(own[:1])
        for frame in {*own}:
            depths[frame].append(own.index(frame))
    outer, count = first.most_common(1)[0] if first else (None, 0)
    if outer is None or len(stacks) < FEWEST_SAMPLES or count < _MOST * len(stacks):
        return None, None
    known = [frame for frame, at in depths.items() if len(at) >= _MOST * len(stacks) and frame != outer]
    known = [frame for frame in known if frame.file == outer.file] or known  # not deep in what it uses
    return outer, max(known, key=lambda frame: np.mean(depths[frame]), default=None)


def _files(analysis: RankAnalysis, times: Times, passes: int) -> float | None:
    """Count the files that the loop's thread reads in each; None where POSIX calls were not traced."""
    thread = analysis.loop.thread
    if not analysis.session.posix_on or thread is None:
        return None
    calls = analysis.session.calls_of(analysis.rank.main)
    reads = [at for at, name in enumerate(calls.names) if "read" in name and "readdir" not in name]
    read = calls.where((calls.tid == thread.tid) & np.isin(calls.name, reads))
    found = 0
    for row in distinct(times[:, 2]).tolist():  # workers that start meanwhile read no data here
        own = times[times[:, 2] == row]
        first, behind = np.searchsorted(read.start_ns, (own[:, 3].min(), own[:, 1].max())).tolist()
        found += len(distinct(read.file[first:behind]))
    return found / passes
