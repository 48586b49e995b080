"""Which rank the others wait for, and whether its data made it late."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from iotrace.analysis.device.breakdown import break_down
from iotrace.analysis.device.collectives import Matched, RankTrace, match
from iotrace.analysis.intervals import Coverage, Intervals, length, subtract, union
from iotrace.analysis.results import Collectives, Imbalance, LateCollective, LateKind, RankBalance, Straggler

_WARNING_PCT, _CRITICAL_PCT = 10.0, 20.0
_WORST = 5
_FEWEST_STEPS = 3  # from which what made a rank late is told
_MOSTLY_PERCENT = 50.0
_CLEARLY = 2.0
_PARTS = ("compute_ms", "communication_wait_ms", "data_wait_ms", "other_ms")


def imbalance_of(ranks: Sequence[RankTrace], world_size: int | None = None) -> Imbalance | None:
    """Compare how evenly the ranks work, from their traces; None with fewer than two."""
    if len(ranks) < 2:
        return None
    matched, unmatched = match(ranks)
    waits = {rank.rank: _waits(rank, matched) for rank in ranks}
    balances = [_balance(rank, waits[rank.rank], bool(matched)) for rank in ranks]
    kinds = {rank.rank: _kind(rank, ranks, balances) for rank in ranks}
    skews_ns = [max(one.durations_ns.values()) - one.real_ns for one in matched]
    late = _late(ranks, matched)
    return Imbalance(
        ranks_seen=len(ranks),
        world_size=world_size,
        ranks=balances,
        spread={
            part.removesuffix("_ms"): _spread([getattr(one, part) for one in balances]) for part in _PARTS
        },
        collectives=Collectives(
            matched=len(matched),
            unmatched=unmatched,
            skew_ms_mean=float(np.mean(skews_ns)) / 1e6 if skews_ns else None,
            skew_ms_max=max(skews_ns) / 1e6 if skews_ns else None,
        ),
        stragglers=_stragglers(ranks, waits, late, _arisen_ms(ranks, matched), kinds) if matched else [],
        worst=sorted(late, key=lambda one: -one.skew_ms)[:_WORST],
        late_kinds=_late_kinds(late),
    )


def _late_kinds(late: Sequence[LateCollective]) -> list[LateKind]:
    """Sum up the matched collectives by name, the most skewed first."""
    by_name: dict[str, list[LateCollective]] = defaultdict(list)
    for one in late:
        by_name[one.name].append(one)
    found = []
    for name, own in by_name.items():
        counts = Counter(one.last_rank for one in own if one.last_rank is not None)
        (last_rank, count) = counts.most_common(1)[0] if counts else (None, 0)
        found.append(
            LateKind(
                name=name,
                matched=len(own),
                tied=sum(one.last_rank is None for one in own),
                last_rank=last_rank,
                last_count=count,
                skew_ms=sum(one.skew_ms for one in own),
            )
        )
    return sorted(found, key=lambda one: -one.skew_ms)


def _compute(rank: RankTrace) -> Intervals:
    """Find when the rank computed: its device; without one, the operators of its process."""
    activity = rank.activity
    mask = activity.compute_kernels if activity.device.any() else activity.operators
    return union(*activity.intervals(mask))


def _waits(rank: RankTrace, matched: list[Matched]) -> dict[int | None, Intervals]:
    """Find, per rank that arrived last, the time in which `rank` waited for it and did not compute.

    None stands for several that arrived last together.
    A rank that arrived early waits at the beginning of its collective.
    """
    starts: dict[int | None, list[int]] = defaultdict(list)
    ends: dict[int | None, list[int]] = defaultdict(list)
    for one in matched:
        if rank.rank in one.durations_ns and one.last != rank.rank:
            start = one.starts_ns[rank.rank]
            starts[one.last].append(start)
            ends[one.last].append(start + one.wait_ns(rank.rank))
    compute = _compute(rank)
    return {
        last: subtract(union(np.array(starts[last], np.int64), np.array(ends[last], np.int64)), compute)
        for last in starts
    }


def _balance(rank: RankTrace, waits: dict[int | None, Intervals], matched: bool) -> RankBalance:
    starts, ends, _ = rank.steps
    waiting = union(
        *(np.concatenate([side[bound] for side in waits.values()] or [starts[:0]]) for bound in (0, 1))
    )
    roles = [_compute(rank), waiting, (rank.waits.starts_ns, rank.waits.ends_ns)]
    parts = dict(zip(_PARTS, (break_down(roles, starts, ends)[0].mean(axis=0) / 1e6).tolist(), strict=True))
    return RankBalance(
        rank=rank.rank,
        steps=len(starts),
        step_ms=float((ends - starts).mean()) / 1e6,
        **parts if matched else {**parts, "communication_wait_ms": None},
    )


def _spread(values: list[float | None]) -> float | None:
    """(max - mean) / mean; None where the mean is 0, or nothing is known."""
    known = [value for value in values if value is not None]
    mean = sum(known) / max(len(known), 1)
    return (max(known) - mean) / mean if mean else None


def _late(ranks: Sequence[RankTrace], matched: list[Matched]) -> list[LateCollective]:
    """List every matched collective, with how much longer than the others the last rank had waited for data.

    Counted is the data wait since the rank's collective before this one.
    """
    coverage = {rank.rank: Coverage(rank.waits.starts_ns, rank.waits.ends_ns) for rank in ranks}
    since = {rank.rank: _since(rank, matched) for rank in ranks}
    found = []
    for number, one in enumerate(matched):
        waited = {
            rank: int(coverage[rank].within(np.array([since[rank][number]]), np.array([start]))[0])
            for rank, start in one.starts_ns.items()
        }
        skew_ns = max(one.durations_ns.values()) - one.real_ns
        own_ns = waited[one.last] if one.last is not None else None
        others_ns = min((ns for rank, ns in waited.items() if rank != one.last), default=0)
        found.append(
            LateCollective(
                name=one.name,
                elements=one.elements,
                step=one.step,
                last_rank=one.last,
                skew_ms=skew_ns / 1e6,
                data_wait_ms=own_ns / 1e6 if own_ns is not None else None,
                late_by_data_ms=(
                    min(skew_ns, max(own_ns - others_ns, 0)) / 1e6 if own_ns is not None else None
                ),
            )
        )
    return found


def _since(rank: RankTrace, matched: list[Matched]) -> dict[int, int]:
    """Find, per index of a collective that the rank took part in, since when its data waits made it late.

    That is since its collective before this one. A step may begin at the delivery of its batch, so that the
    wait for it lies in the step before; before the first collective, the last wait counts whole.
    """
    own = [
        (one.starts_ns[rank.rank], number) for number, one in enumerate(matched) if rank.rank in one.starts_ns
    ]
    previous: int | None = None
    since = {}
    for start, number in sorted(own):
        if previous is None:
            last = int(np.searchsorted(rank.waits.ends_ns, start, side="right")) - 1
            previous = int(rank.waits.starts_ns[last]) if last >= 0 else start
        since[number] = previous
        previous = start
    return since


def _arisen_ms(ranks: Sequence[RankTrace], matched: list[Matched]) -> list[float]:
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
        skew_ns = max(one.durations_ns.values()) - one.real_ns
        if one.last is not None and one.starts_ns[one.last] == firsts_ns[one.last]:
            taken_ns = {rank: start_ns - began_ns[rank] for rank, start_ns in one.starts_ns.items()}
            longer_ns = taken_ns.pop(one.last) - min(taken_ns.values())
            skew_ns = max(0, min(skew_ns, longer_ns))
        found.append(skew_ns / 1e6)
    return found


def _stragglers(
    ranks: Sequence[RankTrace],
    waits: dict[int, dict[int | None, Intervals]],
    late: list[LateCollective],
    arisen_ms: list[float],
    kinds: dict[int, dict[str, float]],
) -> list[Straggler]:
    """Make a row for each rank, the costliest first; `late` and `arisen_ms` have one entry per collective."""
    found = []
    for rank in ranks:
        waited_ns = sum(length(own[rank.rank]) for own in waits.values() if rank.rank in own)
        others_ns = 0
        for other in ranks:
            if other is not rank:
                starts, ends, _ = other.steps
                others_ns += int((ends - starts).sum())
        impact_pct = 100 * waited_ns / others_ns if others_ns else None
        own_late = [
            (min(one.late_by_data_ms or 0.0, own_ms), own_ms)
            for one, own_ms in zip(late, arisen_ms, strict=True)
            if one.last_rank == rank.rank
        ]
        by_data_ms, skew_ms = (sum(column) for column in zip(*own_late, strict=True)) if own_late else (0, 0)
        by_data_pct = 100 * by_data_ms / skew_ms if skew_ms else None
        kind, more_ms = _kind_of(kinds[rank.rank], by_data_pct, len(rank.steps[0]))
        found.append(
            Straggler(
                rank=rank.rank,
                last_to_arrive=len(own_late),
                waited_for_ms=waited_ns / 1e6,
                impact_pct=impact_pct,
                severity=_severity(impact_pct),
                by_data_pct=by_data_pct,
                kind=kind if waited_ns else None,
                kind_ms=more_ms if waited_ns else None,
            )
        )
    return sorted(found, key=lambda one: -one.waited_for_ms)


def _kind(rank: RankTrace, ranks: Sequence[RankTrace], balances: Sequence[RankBalance]) -> dict[str, float]:
    """Find what a rank does longer than the others do, ms of a step by kind.

    What is neither computing nor waiting are late launches where there is a device, else the host's own work.
    """
    own = next(one for one in balances if one.rank == rank.rank)
    others = [one for one in balances if one.rank != rank.rank]
    names = {"data_wait_ms": "data", "compute_ms": "compute"}
    names["other_ms"] = "launch" if all(each.activity.device.any() for each in ranks) else "host"
    return {
        kind: getattr(own, part) - sum(getattr(one, part) for one in others) / len(others)
        for part, kind in names.items()
    }


def _kind_of(
    longer_ms: dict[str, float], by_data_pct: float | None, steps: int
) -> tuple[str | None, float | None]:
    """Choose what made a rank late: its data where that explains most of it, else what it does longest.

    Of fewer than three steps, or where two things are alike, nothing is said.
    """
    if steps < _FEWEST_STEPS:
        return None, None
    if (by_data_pct or 0.0) >= _MOSTLY_PERCENT:
        return "data", longer_ms["data"]
    (kind, most_ms), (_, second_ms), *_ = sorted(longer_ms.items(), key=lambda pair: -pair[1])
    return (kind, most_ms) if most_ms > 0 and most_ms >= _CLEARLY * second_ms else (None, None)


def _severity(impact_pct: float | None) -> str | None:
    if impact_pct is None or impact_pct < _WARNING_PCT:
        return None
    return "critical" if impact_pct >= _CRITICAL_PCT else "warning"
