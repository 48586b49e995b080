"""When samplers choose an epoch's first samples: as an iterator is made, or in the wait for the first batch.

A sampler that measures files there, or sorts all samples, makes each epoch late. No worker helps it.

Definitions: docs/definitions.md, "account".
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

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


def drawn(analysis: RankAnalysis, iterations: Iterations, *, awaited: bool = False) -> Times:
    """Find when first samples were chosen: start, end and number of the pass; none of evaluations.

    With new workers the thread has nothing else to do from when all of them have asked for work until the
    last index is sent. With those that persist it also waits for their answers: samples of its stack say
    which share is the sampler's. `awaited`: without workers, too, in the wait for the first batch.
    """
    main, found = analysis.rank.main, list[tuple[int, int, int]]()
    starts = defaultdict[int, list[IteratorStart]](list)
    for start in main.of_type(IteratorStart):
        starts[start.iterator].append(start)
    made = defaultdict[int, list[tuple[int, int]]](list)
    for record in main.of_type(IteratorMade):
        begun_ns = main.clock.to_session_ns(record.start_ns)
        made[record.iterator].append((begun_ns, begun_ns + record.duration_ns))
    kept: list[tuple[int, int, int]] = []
    sent, ups = _sent(iterations), _ups(analysis)
    for row, each in enumerate(iterations.passes):
        first = each.first
        if iterations.evaluate[row] or first is None or first.index or each.loader.description.iterable:
            continue
        if not each.workers:
            if awaited and (first.sampled_ns or 0) > _LEAST_NS:
                found.append((first.wait_start_ns, first.wait_start_ns + (first.sampled_ns or 0), row))
            continue
        own = [start for start in starts[each.iterator] if start.epoch == first.epoch]
        span = next(
            (
                one
                for one in made[each.iterator]
                if one[0] <= first.delivered_ns and one[1] >= each.of.start_ns
            ),
            None,
        )
        sent_ns = _last_sent(sent[each.iterator, first.epoch], span)
        if span is None or sent_ns is None or not own:
            continue
        if any(start.generation for start in own):
            kept.append((span[0], sent_ns, row))
            continue
        begun_ns = main.clock.to_session_ns(min(start.mono_ns for start in own))
        up_ns = _all_up(ups, own)
        found.append((span[0], begun_ns, row))  # before there are workers: `iter(sampler)`
        if up_ns is not None:
            found.append((max(up_ns, begun_ns), sent_ns, row))
    found += _of_persistent(analysis, kept)
    found = [each for each in found if each[1] - each[0] >= _LEAST_NS]
    return np.array(sorted(found), np.int64).reshape(-1, 3)


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


def _last_sent(sent: Times, span: tuple[int, int] | None) -> int | None:
    """When the last index was sent as an iterator was made."""
    if span is None:
        return None
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


def _of_persistent(
    analysis: RankAnalysis, kept: list[tuple[int, int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Yield a sampler's share of making iterators of kept workers, by samples of the stack."""
    samples, spans = _samples(analysis), np.array(kept, np.int64).reshape(-1, 3)
    if samples is None or not len(spans):
        return
    of = samples.chosen(holding(*union(spans[:, 0], spans[:, 1]), samples.times) >= 0)
    if len(of.times) < FEWEST_SAMPLES:
        return
    share = sum(_in_sampler(stack) is not None for stack in of.each) / len(of.times)
    for start_ns, end_ns, row in kept:
        yield end_ns - int(share * (end_ns - start_ns)), end_ns, row


def _samples(analysis: RankAnalysis) -> StackSamples | None:
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
        return {}, when(np.empty((0, 3), np.int64))
    iterations = iterations_of(analysis)
    times, samples = drawn(analysis, iterations, awaited=True), _samples(analysis)
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
    for first, behind in np.searchsorted(read.start_ns, times[:, :2]).tolist():
        found += len(distinct(read.file[first:behind]))
    return found / passes
