"""When the training thread made iterators of DataLoaders, ended them, and waited for their first batches.

Definitions: docs/definitions.md, "account".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Intervals, Times, grouped, holding, intersect, length, subtract, union
from iotrace.analysis.loop.deliveries import Deliveries, Delivery, Interval, LoaderRun, Pass, PassKey
from iotrace.analysis.loop.unfed import unfed_evaluations
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import (
    FIRST_BATCHES,
    FIRST_START,
    ITERATORS,
    PARTS,
    VALIDATION,
    VALIDATION_ITERATORS,
)
from iotrace.analysis.table import key_of
from iotrace.sources.processes import Process
from iotrace.sources.records import End, IteratorMade, Tick, WorkersEnded
from iotrace.sources.rows import newest_ns

_MUCH = 0.25  # of an evaluation: what follows its batches
_RECURS = 2


class Iteration(msgspec.Struct, frozen=True):
    """A pass over a DataLoader; `first` is its first batch, `is_later`: the loader was iterated before."""

    loader: LoaderRun
    iterator: int
    of: Pass
    first: Delivery | None
    is_later: bool

    @property
    def workers(self) -> int:
        """How many workers the loader has."""
        return self.loader.description.workers

    @property
    def is_anew(self) -> bool:
        """Whether it has new workers, in place of others."""
        return self.is_later and self.workers > 0 and not self.loader.description.persistent_workers

    @property
    def is_single(self) -> bool:
        """Whether it was left after one batch."""
        return self.of.batches == 1 and self.of.exhausted_ns is None

    def parts(self, evaluates: bool) -> tuple[str, str, str]:
        """Name the parts of the making of its iterator, of its ending, and of its first batch.

        An evaluation whose workers persist does not wait for their start: all of that is its own.
        """
        if evaluates:
            part = VALIDATION_ITERATORS if self.is_anew else VALIDATION
            return part if self.is_later else FIRST_START, part, part
        return ITERATORS if self.is_later else FIRST_START, ITERATORS, FIRST_BATCHES


class Iterations(msgspec.Struct, frozen=True):
    """The training thread's passes over DataLoaders, and what of their time is no step of the loop.

    `spans` has a row for each time of that: start, end, number of the pass, number of its part in `PARTS`,
    and 1 where it is the wait for the first batch.
    """

    passes: list[Iteration]
    evaluate: npt.NDArray[np.bool_]
    spans: Times

    def when(self, part: str, of: LoaderRun | None = None, *, awaiting: bool = False) -> Intervals:
        """When the time of a part was; of one loader, or of all. `awaiting`: its waits for first batches."""
        own = self.spans[self.spans[:, 3] == PARTS.index(part)]
        if awaiting:
            own = own[own[:, 4] == 1]
        if of is not None:
            own = own[np.array([each.loader is of for each in self.passes], np.bool_)[own[:, 2]]]
        return union(own[:, 0], own[:, 1])

    def restart_ns(self, loader: LoaderRun, start_ns: int, end_ns: int, awaited: Intervals) -> int:
        """How long iterators of a loader were made and ended between two instants, outside `awaited`; ns."""
        within = union(np.array([start_ns], np.int64), np.array([end_ns], np.int64))
        return length(subtract(intersect(self.when(ITERATORS, loader), within), awaited))

    def single(self, loader: LoaderRun) -> int:
        """How many iterators of a loader were left after one batch."""
        return sum(each.loader is loader and each.is_single for each in self.passes)


def iterations_of(analysis: RankAnalysis) -> Iterations:
    """Find the passes of the training thread, and when their iterators were made, ended, and waited for."""
    tid = analysis.loop.thread.tid if analysis.loop.thread else None
    timed = _timed(analysis.rank.main, tid)
    passes: list[Iteration] = []
    left = under_way(analysis)
    for loader in analysis.loaders:
        if loader.description.wrapped or loader.description.library:
            continue
        firsts = _first_deliveries(loader.deliveries[loader.deliveries["tid"] == tid])
        in_order = sorted(loader.passes.items(), key=lambda one: one[1].start_ns)
        for number, (key, one) in enumerate(in_order):
            is_own = key in firsts or (not one.batches and key[0] in timed)  # else another thread's
            if is_own or (left is not None and one is left.of):
                passes.append(Iteration(loader, key[0], one, firsts.get(key), number > 0))
    asked = np.array([each.of.asked_ns for each in passes], np.int64)
    evaluate = holding(*evaluations_of(analysis), asked) >= 0
    spans: list[tuple[int, int, int, int, int]] = []
    of_iterator: dict[int, list[int]] = defaultdict(list)
    for row, each in enumerate(passes):
        if not each.workers:
            continue
        making, ending, awaiting = map(PARTS.index, each.parts(bool(evaluate[row])))
        asked_ns, first = each.of.asked_ns, each.first
        if first is not None:
            up_ns = min(max(first.up_ns or first.delivered_ns, asked_ns), first.delivered_ns)
            spans += [(asked_ns, up_ns, row, making, 0), (up_ns, first.delivered_ns, row, awaiting, 1)]
        if left is not None and each.of is left.of:
            spans.append((each.of.start_ns, left.until_ns, row, making, 0))
        if each.of.exhausted_ns is not None:
            spans.append((*each.of.exhausted_ns, row, ending, 0))
        elif each.iterator not in timed:  # recorded by an older iotrace, or a library's own `__iter__`
            spans.append((each.of.start_ns, asked_ns, row, making, 0))
        of_iterator[each.iterator].append(row)
    for iterator, rows in of_iterator.items():
        begun = [passes[row].of.start_ns for row in rows]  # inside of the time in which it was made
        for start_ns, end_ns in timed.get(iterator, ()):
            row = rows[max(0, bisect_right(begun, end_ns) - 1)]
            making, ending, _ = map(PARTS.index, passes[row].parts(bool(evaluate[row])))
            is_made = start_ns <= passes[row].of.start_ns
            spans.append((start_ns, end_ns, row, making if is_made else ending, 0))
    return Iterations(passes, evaluate, np.array(spans, np.int64).reshape(-1, 5))


class UnderWay(msgspec.Struct, frozen=True):
    """A pass without a batch yet, for which the program was when it ended at `until_ns`."""

    loader: LoaderRun
    of: Pass
    until_ns: int


def under_way(analysis: RankAnalysis) -> UnderWay | None:
    """Find the pass that the training thread began, and got no batch of before its process was killed.

    None where the process ended by itself, or where the thread did something else in the end.
    """
    main, thread = analysis.rank.main, analysis.loop.thread
    if thread is None or main.of_type(End):
        return None
    begun = [
        (each.start_ns, loader, each)
        for loader in analysis.loaders
        if not (loader.description.wrapped or loader.description.library)
        for each in loader.passes.values()
        if each.tid == thread.tid
    ]
    if not begun:
        return None
    start_ns, loader, last = max(begun, key=lambda each: each[0])
    own = [each.deliveries["delivered_ns"][each.deliveries["tid"] == thread.tid] for each in analysis.loaders]
    later = any((times > start_ns).any() for times in own)
    return None if last.batches or last.exhausted_ns or later else UnderWay(loader, last, ended_ns(main))


def ended_ns(main: Process) -> int:
    """Return when a process ended, or was last heard of."""
    told = [each.mono_ns for each in main.of_type(End)] + [each.clock[0] for each in main.of_type(Tick)[-1:]]
    newest = [newest_ns(kind, rows) for kind, rows in main.arrays.items()]
    return main.clock.to_session_ns(max([main.identity.clock[0], *told, *newest]))


def evaluations_of(analysis: RankAnalysis) -> Intervals:
    """When the loop evaluated: the passes that its steps leave out, and those behind its last step."""
    left_out = analysis.loop.steps.left_out
    last_ns = int(analysis.loop.steps["end_ns"][-1])
    behind = [
        (each.start_ns, each.end_ns)
        for loader in analysis.loaders
        if loader.kind not in ("training", "other")
        for each in loader.passes.values()
        if each.start_ns >= last_ns and _is_asked_by(analysis, loader, each)
    ]
    left = under_way(analysis)
    if left is not None and left.loader.kind not in ("training", "other"):
        behind.append((left.of.start_ns, left.until_ns))
    spans = np.concatenate((left_out, np.array(behind, np.int64).reshape(-1, 2), _unfed(analysis)))
    return union(spans[:, 0], spans[:, 1])


def ends_with_batches(evaluations: Intervals, passes_ns: Times) -> bool:
    """Whether the last evaluation ends with its pass, and others go on behind theirs (`passes_ns`).

    What a program makes of the results lies there, such as a metric over all of them, or images.
    """
    starts, ends = evaluations
    ended = np.maximum(np.searchsorted(passes_ns, ends, side="right") - 1, 0)
    _, of = np.unique(ended, return_inverse=True)  # a save divides what follows a pass
    behind_ns = np.bincount(of, np.maximum(ends - np.maximum(starts, passes_ns[ended]), 0))
    if len(behind_ns) < _RECURS:
        return False
    others_ns = float(np.median(behind_ns[:-1]))
    length_ns = float(np.median(np.bincount(of, ends - starts)[:-1]))
    return others_ns >= _MUCH * length_ns and bool(behind_ns[-1] < _MUCH * others_ns)


def _unfed(analysis: RankAnalysis) -> Times:
    """The evaluation without a loader behind the last known step, where there were some before."""
    steps, thread = analysis.loop.steps, analysis.loop.thread
    if thread is None or not len(steps.opening) or not len(steps.left_out):
        return np.empty((0, 2), np.int64)
    cuts_ns = np.append(steps["start_ns"], steps["end_ns"][-1])
    fed = [
        (each.start_ns, each.end_ns)
        for loader in analysis.loaders
        if loader.kind not in ("training", "other")
        for each in loader.passes.values()
    ]
    found = unfed_evaluations(
        cuts_ns, thread.rounds.times_ns, thread.calls, fed, analysis.loaders, thread.called
    )
    behind: Times = found[found[:, 0] >= cuts_ns[-1]]
    return behind


def _is_asked_by(analysis: RankAnalysis, loader: LoaderRun, each: Pass) -> bool:
    """Whether the training thread takes the batches of a pass."""
    own, tid = loader.deliveries, analysis.loop.thread.tid if analysis.loop.thread else None
    at = int(np.searchsorted(own["delivered_ns"], each.asked_ns))
    return at < len(own) and int(own["tid"][at]) == tid


def _timed(main: Process, tid: int | None) -> dict[int, list[Interval]]:
    """When a thread made iterators, and when it ended their workers, by the iterator's number."""
    found: dict[int, list[Interval]] = defaultdict(list)
    for record in [*main.of_type(IteratorMade), *main.of_type(WorkersEnded)]:
        if record.tid == tid:
            bounds = (record.start_ns, record.start_ns + record.duration_ns)
            start_ns, end_ns = map(main.clock.to_session_ns, bounds)
            found[record.iterator].append((start_ns, end_ns))
    return found


def _first_deliveries(own: Deliveries) -> dict[PassKey, Delivery]:
    """The first batch of each pass."""
    keys = key_of(own["iterator"], own["epoch"])
    return {each.of_pass: each for each in own[np.sort(grouped(keys)[1])]}
