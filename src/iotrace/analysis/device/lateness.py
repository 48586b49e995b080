"""How late the last rank came to each collective, and what it did longer than the rank that came first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.device.collectives import Matched, RankTrace
from iotrace.analysis.device.gaps import break_down
from iotrace.analysis.intervals import Coverage, subtract, union
from iotrace.sources.kineto.trace import Column

_LATE_STEP = 0.05  # of a step: from which its skew makes it a late one
_FEWEST_LATE = 5  # late steps, from which is told whether the late rank stays the same
STAYS, MOVES = "stays", "moves"
_STAYS, _MOVES = 0.8, 0.6  # share of the late steps of the rank that is last most often


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """A matched collective; `arisen_ns` is the part of its skew that arose within the window.

    One delay of a rank holds up all collectives that are pending meanwhile (DDP's buckets): `once_ns` is
    what this one adds to those that the rank came to before.
    `last` is None where several came last together, and where `unsure`: the bound of the ranks' clocks is no
    smaller than the skew, or they contradict the durations. `late_by_ns` is what the last rank did
    longer than the first by kind; `wait` is the row of the longest data wait that made it late, -1 without.
    """

    matched: Matched
    last: int | None
    unsure: bool
    skew_ns: int
    arisen_ns: int
    once_ns: int
    data_wait_ns: int | None = None
    late_by_data_ns: int | None = None
    late_by_ns: dict[str, int] = {}
    wait: int = -1

    @property
    def counted_ns(self) -> int:
        """The skew without what only shows that the rank's profiler started later: nothing explains that."""
        return max(self.arisen_ns, self.late_by_data_ns or 0)


def lateness_of(ranks: Sequence[RankTrace], matched: Sequence[Matched]) -> list[Late]:
    """Judge every matched collective, in order."""
    by_number = {rank.rank: rank for rank in ranks}
    before = {rank.rank: _before(rank, matched) for rank in ranks}
    kinds = ("data", "compute", "communication", other_kind(ranks))
    arisen_ns, added_ns = _arisen_ns(ranks, matched), _added_ns(matched)
    found = []
    for number, one in enumerate(matched):
        skew_ns, last = one.skew_ns, one.last
        late = Late(
            matched=one,
            last=last,
            unsure=last is not None and _unsure(one, last, by_number),
            skew_ns=skew_ns,
            arisen_ns=arisen_ns[number],
            once_ns=min(arisen_ns[number], added_ns[number]),
        )
        if last is None or late.unsure:
            found.append(replace(late, last=None))
            continue
        own = before[last][number]
        others_ns = min(before[rank][number].exposed_ns for rank in one.starts_ns if rank != last)
        first = max(one.durations_ns, key=lambda rank: one.durations_ns[rank])
        longer_ns = own.parts - before[first][number].parts
        found.append(
            replace(
                late,
                data_wait_ns=own.wait_ns,
                late_by_data_ns=min(skew_ns, max(own.exposed_ns - others_ns, 0)),
                late_by_ns=_within(dict(zip(kinds, longer_ns.tolist(), strict=True)), late.once_ns),
                wait=_longest(by_number[last], own.since_ns, one.starts_ns[last]),
            )
        )
    return found


def other_kind(ranks: Sequence[RankTrace]) -> str:
    """Name what neither computes nor waits: late launches where each rank has a device, else its host."""
    return "launch" if all(each.has_device for each in ranks) else "host"


def bound_ns(ranks: Sequence[RankTrace]) -> int | None:
    """How far the clocks of any two ranks may be apart; None where one is unknown."""
    known = sorted((each.clock_bound_ns for each in ranks if each.clock_bound_ns is not None), reverse=True)
    return sum(known[:2]) if len(known) == len(ranks) else None


def _unsure(one: Matched, last: int, ranks: dict[int, RankTrace]) -> bool:
    """Whether the clocks cannot confirm who was last: their bound is too wide, or they name another rank."""
    off_ns = bound_ns([ranks[rank] for rank in one.starts_ns])
    if off_ns is None:
        return False  # nothing is known of the clocks: the durations alone tell
    return one.skew_ns <= off_ns or one.starts_ns[last] + off_ns < max(one.starts_ns.values())


class _Before(msgspec.Struct, frozen=True):
    """What a rank did since its collective before one, from `since_ns` on: ns.

    Its data wait, all of it and what no kernel of a device covers; `parts` are the kinds of lateness.
    """

    since_ns: int
    wait_ns: int
    exposed_ns: int
    parts: Column


def _before(rank: RankTrace, matched: Sequence[Matched]) -> dict[int, _Before]:
    """Measure what the rank did before each collective that it took part in, by its index in `matched`.

    A step may begin at the delivery of its batch, so that the wait for it lies in the step before; before the
    first collective, the last wait counts whole. A device that computes hides a wait. On a host an operator
    around a collective or a wait computes nothing.
    """
    own = [(one.starts_ns[rank.rank], at) for at, one in enumerate(matched) if rank.rank in one.starts_ns]
    if not own:
        return {}
    arrivals, numbers = np.array(sorted(own), np.int64).T
    last = int(np.searchsorted(rank.waits.ends_ns, arrivals[0], side="right")) - 1
    first_ns = rank.waits.starts_ns[last] if last >= 0 else arrivals[0]
    since = np.append(first_ns, arrivals[:-1])
    raw = exposed = Coverage(rank.waits.starts_ns, rank.waits.ends_ns)
    if rank.has_device:
        exposed = Coverage(*subtract((raw.starts, raw.ends), rank.compute))
    lasted = np.array([matched[number].durations_ns[rank.rank] for number in numbers], np.int64)
    roles = ((rank.waits.starts_ns, rank.waits.ends_ns), rank.compute, union(arrivals, arrivals + lasted))
    order = (1, 2, 0) if rank.has_device else (2, 0, 1)
    # What a rank did before its first collective, since the window began, made it late there.
    begins = np.append(min(first_ns, rank.steps[0][0]), since[1:])
    table = break_down([roles[each] for each in order], begins, arrivals)[0]
    columns = (
        since.tolist(),
        raw.within(since, arrivals).tolist(),
        exposed.within(since, arrivals).tolist(),
        table[:, [*np.argsort(order), len(roles)]],
    )
    return dict(zip(numbers.tolist(), map(_Before, *columns), strict=True))


def _within(longer_ns: dict[str, int], arisen_ns: int) -> dict[str, int]:
    """Keep what took longer, and of it no more in all than the skew that it explains."""
    kept = {kind: min(ns, arisen_ns) for kind, ns in longer_ns.items() if min(ns, arisen_ns) > 0}
    share = min(1.0, arisen_ns / sum(kept.values())) if kept else 1.0
    return {kind: round(ns * share) for kind, ns in kept.items()}


def _longest(rank: RankTrace, begin_ns: int, end_ns: int) -> int:
    """Find the row of the rank's longest data wait between two times; -1 without any."""
    waits = rank.waits
    first = int(np.searchsorted(waits.ends_ns, begin_ns, side="right"))
    behind = int(np.searchsorted(waits.starts_ns, end_ns, side="left"))
    if first >= behind:
        return -1
    inside = np.minimum(waits.ends_ns[first:behind], end_ns) - np.maximum(
        waits.starts_ns[first:behind], begin_ns
    )
    return first + int(inside.argmax())


def _arisen_ns(ranks: Sequence[RankTrace], matched: Sequence[Matched]) -> list[int]:
    """Find, per collective, which part of its skew arose within the window.

    A rank may have been late when its window began. Of the skew of its first collective there counts how much
    longer it took from the window's start to that collective than the quickest other rank.
    """
    began_ns = {rank.rank: int(rank.steps[0][0]) for rank in ranks}
    firsts_ns: dict[int, int] = {}
    for one in matched:
        for rank, start_ns in one.starts_ns.items():
            firsts_ns[rank] = min(start_ns, firsts_ns.get(rank, start_ns))
    found = []
    for one in matched:
        skew_ns = one.skew_ns
        if one.last is not None and one.starts_ns[one.last] == firsts_ns[one.last]:
            taken_ns = {rank: start_ns - began_ns[rank] for rank, start_ns in one.starts_ns.items()}
            longer_ns = taken_ns.pop(one.last) - min(taken_ns.values())
            skew_ns = max(0, min(skew_ns, longer_ns))
        found.append(skew_ns)
    return found


def _added_ns(matched: Sequence[Matched]) -> list[int]:
    """Find, per collective, how much of its skew no other one counts that its last rank came to before.

    Of the wait of the rank that came first that is what begins behind the end of its waits in those.
    """
    found = [one.skew_ns for one in matched]
    by_last: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, one in enumerate(matched):
        if one.last is not None:
            by_last[one.last].append((one.starts_ns[one.last], number))
    for own in by_last.values():
        until_ns: dict[int, int] = {}
        for _, number in sorted(own):
            one = matched[number]
            first = max(one.durations_ns, key=lambda rank: one.durations_ns[rank])
            end_ns = one.starts_ns[first] + one.skew_ns
            found[number] = min(one.skew_ns, max(0, end_ns - until_ns.get(first, one.starts_ns[first])))
            for rank, start_ns in one.starts_ns.items():
                until_ns[rank] = max(start_ns + one.wait_ns(rank), until_ns.get(rank, start_ns))
    return found


def rank_waits(rank: RankTrace, late: Sequence[Late]) -> Column:
    """Find where `rank` was not last: when it arrived, how long it waited, how much of that counts, for whom.

    Rows of ns; -1 stands for several that arrived last together, and for one that is unsure. A rank that
    arrived early waits at the beginning of its collective. What was late before the window does not count.
    """
    rows = [
        (
            one.matched.starts_ns[rank.rank],
            one.matched.wait_ns(rank.rank),
            one.counted_ns,
            -1 if one.last is None else one.last,
        )
        for one in late
        if rank.rank in one.matched.durations_ns and one.matched.last != rank.rank
    ]
    table: Column = np.array(rows, np.int64).reshape(-1, 4).T
    return table


def waited_for_ns(rank: RankTrace, waits: Column) -> dict[int, int]:
    """Sum up, by the rank that arrived last, how long `rank` waited for it and did not compute, ns."""
    starts, waited, counted, last = waits
    ends = starts + waited
    starts = ends - np.minimum(waited, counted)
    if not len(starts):
        return {}
    # Waits for one rank may overlap, and count once; those for several stand side by side for that.
    numbers, group = np.unique(last, return_inverse=True)
    first, apart = starts.min(), ends.max() - starts.min() + 1
    begins, ends = union(starts - first + group * apart, ends - first + group * apart)
    group = begins // apart
    shift = first - group * apart
    long_ns = ends - begins - Coverage(*rank.compute).within(begins + shift, ends + shift)
    sums = np.zeros(len(numbers), np.int64)
    np.add.at(sums, group, long_ns)
    return dict(zip(numbers.tolist(), sums.tolist(), strict=True))


def late_steps(late: Sequence[Late], step_ns: float) -> dict[int, int]:
    """Count, by rank, the steps that it made late: whose skew is due to it most, and worth 5 % of a step."""
    by_step: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for each in late:
        if each.last is not None and each.matched.step is not None:
            by_step[each.matched.step][each.last] += max(each.once_ns, each.late_by_data_ns or 0)
    counts: dict[int, int] = defaultdict(int)
    for own in by_step.values():
        rank = max(own, key=lambda number: own[number])
        if own[rank] >= _LATE_STEP * step_ns > 0:
            counts[rank] += 1
    return dict(counts)


def pattern_of(counts: dict[int, int], waited_ns: dict[int, float] | None = None) -> str | None:
    """Say whether the late rank ``stays`` the same or ``moves``; None between, and of few late steps.

    `counts` are the steps that each rank made late. Where it is known how long the others waited for each,
    that decides: few long waits for one rank cost more than many short ones for another.
    """
    if sum(counts.values()) < _FEWEST_LATE:
        return None
    shares = counts if waited_ns is None else waited_ns
    most = max(shares.values()) / sum(shares.values())
    several = sum(count >= 2 for count in counts.values()) >= 2
    return STAYS if most >= _STAYS else MOVES if most <= _MOVES and several else None
