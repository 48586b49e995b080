"""The same collective on every rank: matched by group and sequence, else by step, order and size.

What is compared is a small part of a rank's trace, which another process can send.

Whether traces are of one job's ranks: what speaks against it, as a sentence.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from itertools import combinations, product

import msgspec
import numpy as np

from iotrace.analysis.device.accelerator import DataWaits
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.efficiency.launches import bytes_of, match_collectives
from iotrace.analysis.intervals import Coverage, Intervals, distinct, intersect, subtract, union
from iotrace.sources.kineto.collectives import Collective
from iotrace.sources.kineto.trace import Column
from iotrace.units import counted, time_span

# Backends that communicate on the host; the ranges of others (nccl:…) are mere launches.
_HOST_BACKEND = re.compile(r"(?:gloo|mpi|ucc):")
_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv"})
_NO_STEP = -1


class LateBatch(msgspec.Struct, frozen=True):
    """The batch of a data wait: the worker that made it, its costliest cause and file; None: unknown."""

    batch: int
    worker: int | None
    pid: int | None
    cause: str | None
    file: str | None


class Called(msgspec.Struct, frozen=True):
    """A rank's collectives in order of start, but sends and receives: columns, and the lists that they index.

    `key` is what a collective shares with the other ranks'; `step` the step that launched it, -1 outside.
    """

    start_ns: Column
    duration_ns: Column
    step: Column
    key: Column
    name: Column
    about: Column
    keys: list[Hashable]
    names: list[str]
    abouts: list[Collective | None]


class RankTrace(msgspec.Struct, frozen=True):
    """A rank's collectives, steps, data waits and when it computed; the batch of each wait, where known.

    `compute` is of its device, or without one of its operators; outside of collectives it is summed up.
    Without steps of the profiler (not `stepped`) all of the trace is one step numbered -1. Times are the
    reference's to within `clock_bound_ns`; None where its clock was compared with none.
    """

    rank: int
    called: Called
    compute: Intervals
    waits: DataWaits
    steps: tuple[Column, Column, list[int]]
    stepped: bool
    has_device: bool
    clock_bound_ns: int | None = None
    batches: Sequence[LateBatch | None] = ()


def rank_trace_of(
    rank: int,
    activity: Activity,
    waits: DataWaits,
    clock_bound_ns: int | None = None,
    batches_of: Callable[[int], Sequence[LateBatch | None]] | None = None,
) -> RankTrace:
    """Take from a trace what is compared; `batches_of` names the batches of `waits` from a row on."""
    (starts, ends), numbers = activity.step_spans()
    first_ns, last_ns = activity.trace.span_ns() or (0, 0)
    stepped = bool(len(starts))
    if not stepped:
        starts, ends, numbers = np.array([first_ns]), np.array([last_ns]), [_NO_STEP]
    # A wait that ended before the trace began made nothing of it late; the last one counts.
    kept = max(0, int(np.searchsorted(waits.ends_ns, first_ns, side="right")) - 1)
    has_device = bool(activity.device.any())
    mask = activity.compute_kernels if has_device else activity.operators
    called = _called(activity, starts, ends, numbers)
    waits = DataWaits(waits.starts_ns[kept:].copy(), waits.ends_ns[kept:].copy())
    return RankTrace(
        rank=rank,
        called=called,
        compute=_summed(union(*activity.intervals(mask)), called, waits, (starts, ends)),
        waits=waits,
        steps=(starts, ends, numbers),
        stepped=stepped,
        has_device=has_device,
        clock_bound_ns=clock_bound_ns,
        batches=[] if batches_of is None else batches_of(kept),
    )


def _summed(compute: Intervals, called: Called, waits: DataWaits, steps: Intervals) -> Intervals:
    """Put what computes between two bounds at which ranks are compared at the first of them, in one piece.

    Bounds are where collectives, data waits and steps begin and end: each sum stays the same, and a rank
    sends a row for each of them instead of each kernel. Within a collective all stays as it is: where in it
    the wait for another rank ends is not known yet.
    """
    begun, ended = called.start_ns, called.start_ns + called.duration_ns
    bounds = distinct(np.concatenate([begun, ended, waits.starts_ns, waits.ends_ns, *steps]))
    within = union(begun, ended)
    long_ns = Coverage(*subtract(compute, within)).within(bounds[:-1], bounds[1:])
    starts, ends = intersect(compute, within)
    return union(np.concatenate([starts, bounds[:-1]]), np.concatenate([ends, bounds[:-1] + long_ns]))


def _called(activity: Activity, starts: Column, ends: Column, numbers: list[int]) -> Called:
    """Find the collectives: kernels, or ranges of backends on the host."""
    trace, events = activity.trace, activity.trace.events
    on_host = activity.collective_ranges & trace.matching(_HOST_BACKEND)
    rows, told = np.flatnonzero(activity.collective_kernels | on_host), match_collectives(activity)
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    begun = activity.launched_ns(rows, events.start_ns[rows])
    index = np.searchsorted(starts, begun, side="right") - 1
    steps = np.where((index >= 0) & (begun < ends[index]), np.array(numbers)[index], _NO_STEP)
    keys: dict[Hashable, int] = {}
    names: dict[str, int] = {}
    abouts: dict[int, int] = {}
    taken: list[tuple[int, int, int, int, int]] = []
    for row, step in zip(rows.tolist(), steps.tolist(), strict=True):
        number, name = int(told[row]), trace.names[events.name[row]]
        one = trace.collectives[number] if number >= 0 else None
        if one is not None and one.name.partition(" ")[0] in _POINT_TO_POINT:
            continue
        key = _key(one, step, name)
        if one is not None and one.group is None and events.collective[row] < 0:
            key = step, one.name  # a range tells neither group nor, of uneven parts, an equal size
        numbered = keys.setdefault(key, len(keys)), names.setdefault(name, len(names))
        taken.append((row, step, *numbered, abouts.setdefault(number, len(abouts))))
    row, step_of, key_of, name_of, about_of = np.array(taken, np.int64).reshape(-1, 5).T.copy()
    return Called(
        start_ns=events.start_ns[row],
        duration_ns=events.duration_ns[row],
        step=step_of,
        key=key_of,
        name=name_of,
        about=about_of,
        keys=list(keys),
        names=list(names),
        abouts=[trace.collectives[number] if number >= 0 else None for number in abouts],
    )


def _key(one: Collective | None, step: int, name: str) -> Hashable:
    if one is None:
        return step, name
    if one.sequence is not None:
        return one.group, one.ranks, one.sequence, one.name
    return step, one.group, one.ranks, one.name, one.dtype, one.elements


class Matched(msgspec.Struct, frozen=True, dict=True):
    """One collective on the ranks that took part: each one's start and duration in its own clock."""

    name: str
    elements: int | None
    step: int | None
    starts_ns: dict[int, int]
    durations_ns: dict[int, int]
    group: str | None = None
    about: Collective | None = None
    bytes: int | None = None

    @cached_property
    def real_ns(self) -> int:
        """What it took once all ranks had arrived: the shortest of the durations."""
        return min(self.durations_ns.values())

    @property
    def skew_ns(self) -> int:
        """The longest wait of a rank."""
        return max(self.durations_ns.values()) - self.real_ns

    @cached_property
    def last(self) -> int | None:
        """The rank that arrived last: it waited least. None where several waited as little."""
        last = [rank for rank, lasted_ns in self.durations_ns.items() if lasted_ns == self.real_ns]
        return last[0] if len(last) == 1 else None

    def wait_ns(self, rank: int) -> int:
        return self.durations_ns[rank] - self.real_ns


def match(ranks: Sequence[RankTrace]) -> tuple[list[Matched], int]:
    """Match the collectives that the trace of every rank taking part holds, in order; count the others."""
    found: dict[Hashable, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        keys = rank.called.keys
        for row, key in enumerate(rank.called.key.tolist()):
            found[keys[key]][rank.rank].append(row)
    by_number = {rank.rank: rank for rank in ranks}
    matched = []
    unmatched = 0
    for rows in found.values():
        first = next(iter(rows))
        called = by_number[first].called
        about = called.abouts[called.about[rows[first][0]]]
        taking_part = by_number.keys() & about.ranks if about and about.ranks else by_number.keys()
        counts = {len(own) for own in rows.values()}
        if rows.keys() != taking_part or len(counts) != 1 or len(rows) < 2:
            unmatched += max(counts)
            continue
        for number in range(counts.pop()):
            matched.append(_matched(by_number, {rank: own[number] for rank, own in rows.items()}))
    order = min(by_number)
    return sorted(matched, key=lambda one: one.starts_ns.get(order, min(one.starts_ns.values()))), unmatched


def _matched(ranks: dict[int, RankTrace], rows: dict[int, int]) -> Matched:
    first = min(rows)
    called, row = ranks[first].called, rows[first]
    about, step = called.abouts[called.about[row]], int(called.step[row])
    return Matched(
        name=about.name if about else called.names[called.name[row]],
        elements=about.elements if about else None,
        step=None if step == _NO_STEP else step,
        starts_ns={rank: int(ranks[rank].called.start_ns[own]) for rank, own in rows.items()},
        durations_ns={rank: int(ranks[rank].called.duration_ns[own]) for rank, own in rows.items()},
        group=about.group if about else None,
        about=about,
        bytes=max(sizes) if (sizes := _sizes(ranks, rows)) else None,
    )


def _sizes(ranks: dict[int, RankTrace], rows: dict[int, int]) -> list[int]:
    """What each rank moves, of uneven parts not the same; empty where one does not tell."""
    abouts = [ranks[rank].called.abouts[ranks[rank].called.about[row]] for rank, row in rows.items()]
    sizes = [None if about is None else bytes_of(about) for about in abouts]
    known = [size for size in sizes if size is not None]
    return known if len(known) == len(sizes) else []


# Ranks are profiled at about the same time; clocks of hosts differ by seconds, without NTP by minutes.
APART_NS = 3_600 * 10**9
_MOST_NAMED = 8


class RankOfJob(msgspec.Struct, frozen=True):
    """What a trace says of its job; `first_ns` and `last_ns` by CLOCK_REALTIME, None where they have no date.

    `process` tells the processes of a rank apart: one process may leave several windows.
    """

    label: str
    rank: int | None
    world_size: int | None
    process: int | str | None
    first_ns: int | None
    last_ns: int | None


def why_not_one_job(traces: Sequence[RankOfJob]) -> str | None:
    """Say why `traces` cannot be of one job; None where nothing speaks against it."""
    by_rank: dict[int, list[RankOfJob]] = defaultdict(list)
    for trace in traces:
        if trace.rank is not None:
            by_rank[trace.rank].append(trace)
    sizes = {trace.world_size for trace in traces if trace.world_size}
    pairs = (pair for own in by_rank.values() for pair in combinations(own, 2))
    # The first pair at odds is looked for where there is one: a job of thousands has millions of pairs.
    if len(sizes) > 1 or not all(_of_one_process(*pair) for pair in pairs):
        for one, other in combinations(traces, 2):
            if one.world_size and other.world_size and one.world_size != other.world_size:
                size = counted(one.world_size, "rank")
                return f"{one.label} is of a job of {size}, {other.label} of one of {other.world_size}"
            if one.rank is not None and one.rank == other.rank and not _of_one_process(one, other):
                return f"{one.label} and {other.label} are both of rank {one.rank}"
    return _describe_distant_ranks(by_rank)


def ranks_missing(traces: Sequence[RankOfJob]) -> str | None:
    """Name the ranks of the job of which `traces` hold nothing; None without any, or with an unknown size."""
    known, sizes = {trace.rank for trace in traces}, {trace.world_size for trace in traces}
    if len(traces) < 2 or None in known or len(sizes) > 1:
        return None
    size = sizes.pop() or 0
    missing = [rank for rank in range(size) if rank not in known]
    if not missing:
        return None
    named = ", ".join(map(str, missing[:_MOST_NAMED]))
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return f"{'rank' if len(missing) == 1 else 'ranks'} {named}{more} of {size}"


def _describe_distant_ranks(by_rank: dict[int, list[RankOfJob]]) -> str | None:
    """Say which two ranks were never recorded within an hour of each other; None where all were."""
    dated = [(one.first_ns, one.last_ns) for own in by_rank.values() for one in own]
    firsts = [first for first, last in dated if first is not None and last is not None]
    lasts = [last for first, last in dated if first is not None and last is not None]
    if not firsts or max(firsts) - min(lasts) <= APART_NS:
        return None
    for first, second in combinations(sorted(by_rank), 2):
        gaps = [(_gap_ns(*pair), *pair) for pair in product(by_rank[first], by_rank[second])]
        known = [gap for gap in gaps if gap[0] is not None and gap[0] > APART_NS]
        if len(known) == len(gaps):
            gap_ns, one, two = min(known, key=lambda gap: gap[0] or 0)
            return f"{one.label} and {two.label} were recorded {time_span((gap_ns or 0) / 1e9)} apart"
    return None


def why_not_compared(traces: Sequence[RankOfJob]) -> str | None:
    """Say why `traces` cannot be compared as ranks of one job; None where they can."""
    nameless = next((trace for trace in traces if trace.rank is None), None)
    if len(traces) > 1 and nameless is not None:
        return f"{nameless.label} does not say which rank of which job it is"
    why = why_not_one_job(traces)
    counts = Counter(trace.rank for trace in traces)
    again = next((trace.rank for trace in traces if counts[trace.rank] > 1), None)
    return why or (None if again is None else f"several windows of rank {again}: give one of each rank")


def _of_one_process(one: RankOfJob, other: RankOfJob) -> bool:
    """Whether two traces of a rank are windows of one process, one after the other."""
    apart_ns = _gap_ns(one, other)
    return one.process is not None and one.process == other.process and (apart_ns is None or apart_ns >= 0)


def _gap_ns(one: RankOfJob, other: RankOfJob) -> int | None:
    """Compute the time between two traces, negative where they overlap; None where either has no date."""
    if one.first_ns is None or one.last_ns is None or other.first_ns is None or other.last_ns is None:
        return None
    return max(one.first_ns, other.first_ns) - min(one.last_ns, other.last_ns)
