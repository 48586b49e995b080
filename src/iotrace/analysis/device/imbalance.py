"""Which rank the others wait for, and why it was late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import comb
from typing import Any

import msgspec
import numpy as np

from iotrace.analysis.device.collectives import LateBatch, RankTrace, match
from iotrace.analysis.device.gaps import break_down
from iotrace.analysis.device.late_groups import late_groups, late_kinds, speeds_of
from iotrace.analysis.device.lateness import (
    Late,
    bound_ns,
    late_steps,
    lateness_of,
    other_kind,
    pattern_of,
    rank_waits,
    waited_for_ns,
)
from iotrace.analysis.intervals import union
from iotrace.analysis.results import Collectives, Imbalance, LateCollective, RankBalance, Straggler
from iotrace.sources.kineto.trace import Column
from iotrace.units import milliseconds

_WARNING_PCT, _CRITICAL_PCT = 10.0, 20.0
_WORST = 5
_MOST_NAMED = 200  # collectives whose batches are looked up
_FEWEST_STEPS = 3  # from which what made a rank late is told
_MOSTLY_PERCENT = 50.0
_CLEARLY = 2.0
_BY_CHANCE = 0.05
_PARTS = ("compute_ms", "communication_wait_ms", "data_wait_ms", "other_ms")
_EVIDENCE = {
    "compute": "it computes {:.1f} ms a step longer",
    "communication": "it stays {:.1f} ms a step longer in other collectives",
    "launch": "its device is idle {:.1f} ms a step longer: late launches",
    "host": "{:.1f} ms a step more are neither computing nor waiting",
}


def imbalance_of(ranks: Sequence[RankTrace], world_size: int | None = None) -> Imbalance | None:
    """Compare how evenly the ranks work, from their traces; None with fewer than two."""
    if len(ranks) < 2:
        return None
    matched, unmatched = match(ranks)
    late = lateness_of(ranks, matched)
    off_ns, why = bound_ns(ranks), _withheld(late, bound_ns(ranks))
    waits = [rank_waits(rank, late) for rank in ranks]
    balances = [_balance(rank, own, bool(matched)) for rank, own in zip(ranks, waits, strict=True)]
    steps = late_steps(late, 1e6 * float(np.mean([one.step_ms for one in balances])))
    stepped = all(rank.stepped for rank in ranks)
    told = bool(matched) and why is None
    stragglers = _stragglers(ranks, late, waits, balances, steps if stepped else None) if told else []
    in_all_ms = sum(one.steps * one.step_ms for one in balances)
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
            skew_ms_mean=float(np.mean([one.skew_ns for one in late])) / 1e6 if late else None,
            skew_ms_max=max(one.skew_ns for one in late) / 1e6 if late else None,
            speeds=speeds_of(matched, world_size),
        ),
        stragglers=stragglers,
        worst=_worst({rank.rank: rank for rank in ranks}, late),
        late_kinds=late_kinds(late),
        late_groups=late_groups(late, why),
        clock_bound_us=None if off_ns is None else off_ns / 1e3,
        withheld=why,
        pattern=pattern_of(steps) if told and stepped else None,
        late_steps=sum(steps.values()) if told and stepped else None,
        late_pct=100 * sum(one.waited_for_ms for one in stragglers) / in_all_ms
        if told and in_all_ms
        else None,
    )


def _withheld(late: Sequence[Late], off_ns: int | None) -> str | None:
    """Say why no rank is named: the clocks do not confirm who was last in most of the skew."""
    skew_ns = sum(one.skew_ns for one in late)
    unsure = [one for one in late if one.unsure]
    if off_ns is None or not skew_ns or 2 * sum(one.skew_ns for one in unsure) <= skew_ns:
        return None
    off, most = milliseconds(off_ns / 1e6), milliseconds(max(one.skew_ns for one in unsure) / 1e6)
    return (
        f"no rank is named as late: clocks known to ± {off} do not confirm which was last in {len(unsure)} "
        f"of {len(late)} collectives (skew {most} at most)"
    )


def _worst(ranks: dict[int, RankTrace], late: Sequence[Late]) -> list[LateCollective]:
    """List the collectives with the largest skew, each with the batch that made its last rank late."""
    found = []
    for one in sorted(late, key=lambda one: -one.skew_ns)[:_WORST]:
        batch = _batch(ranks, one)
        found.append(
            LateCollective(
                name=one.matched.name,
                elements=one.matched.elements,
                step=one.matched.step,
                last_rank=one.last,
                skew_ms=one.skew_ns / 1e6,
                data_wait_ms=None if one.data_wait_ns is None else one.data_wait_ns / 1e6,
                late_by_data_ms=None if one.late_by_data_ns is None else one.late_by_data_ns / 1e6,
                unsure=one.unsure,
                late_by_ms={kind: ns / 1e6 for kind, ns in one.late_by_ns.items()},
                **({} if batch is None else msgspec.structs.asdict(batch)),
            )
        )
    return found


def _batch(ranks: dict[int, RankTrace], one: Late) -> LateBatch | None:
    """Find the batch that made the last rank late; None where its data did not, or nothing names it."""
    rank = None if one.last is None else ranks.get(one.last)
    if rank is None or not rank.batches or one.wait < 0 or not one.late_by_data_ns:
        return None
    return rank.batches[one.wait]


def _balance(rank: RankTrace, waits: Column, matched: bool) -> RankBalance:
    starts, ends, _ = rank.steps
    waiting = union(waits[0], waits[0] + waits[1])
    roles = [rank.compute, waiting, (rank.waits.starts_ns, rank.waits.ends_ns)]
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


def _stragglers(
    ranks: Sequence[RankTrace],
    late: Sequence[Late],
    waits: Sequence[Column],
    balances: Sequence[RankBalance],
    steps: dict[int, int] | None,
) -> list[Straggler]:
    """Make a row for each rank, the costliest first; `steps` counts those that each made late."""
    in_all_ns: dict[int, int] = defaultdict(int)
    for rank, own_waits in zip(ranks, waits, strict=True):
        for last, waited_ns in waited_for_ns(rank, own_waits).items():
            in_all_ns[last] += waited_ns
    by_last: dict[int | None, list[Late]] = defaultdict(list)
    for one in late:
        by_last[one.last].append(one)
    by_number = {rank.rank: rank for rank in ranks}
    found = []
    for rank in ranks:
        waited_ns = in_all_ns[rank.rank]
        others_ms = sum(one.steps * one.step_ms for one in balances if one.rank != rank.rank)
        impact_pct = 100 * waited_ns / 1e6 / others_ms if others_ms else None
        own = by_last[rank.rank]
        skew_ns = sum(one.once_ns for one in own)
        data_ns = sum(min(one.late_by_data_ns or 0, one.once_ns) for one in own)
        by_data_pct = 100 * data_ns / skew_ns if skew_ns else None
        late_by_ms: dict[str, float] = defaultdict(float)
        for one in own:
            for part, longer_ns in one.late_by_ns.items():
                late_by_ms[part] += longer_ns / 1e6
        kind = _kind_of(late_by_ms, skew_ns / 1e6, by_data_pct) if waited_ns else None
        if len(rank.steps[0]) < _FEWEST_STEPS:
            kind = None
        longer_ms = None if kind is None else _longer_ms(rank.rank, kind, ranks, balances, late_by_ms)
        batch = _usual_batch(by_number, own) if kind == "data" else {}
        found.append(
            Straggler(
                rank=rank.rank,
                last_to_arrive=len(own),
                waited_for_ms=waited_ns / 1e6,
                impact_pct=impact_pct,
                severity=_severity(impact_pct),
                by_data_pct=by_data_pct,
                kind=kind,
                kind_ms=longer_ms,
                late_by_ms=dict(late_by_ms),
                late_steps=None if steps is None else steps.get(rank.rank, 0),
                before_window_ms=sum(one.skew_ns - one.counted_ns for one in own) / 1e6,
                evidence=_evidence(kind, longer_ms, batch),
                **batch,
            )
        )
    return sorted(found, key=lambda one: (-one.waited_for_ms, -one.last_to_arrive))


def _kind_of(late_by_ms: dict[str, float], skew_ms: float, by_data_pct: float | None) -> str | None:
    """Choose what made a rank late: its data where that explains most of it, else what clearly does."""
    if (by_data_pct or 0.0) >= _MOSTLY_PERCENT:
        return "data"
    (kind, most_ms), (_, second_ms), *_ = [
        *sorted(late_by_ms.items(), key=lambda pair: -pair[1]),
        ("", 0.0),
        ("", 0.0),
    ]
    mostly = 100 * most_ms >= _MOSTLY_PERCENT * skew_ms > 0
    return kind if mostly and most_ms >= _CLEARLY * second_ms else None


def _longer_ms(
    rank: int,
    kind: str,
    ranks: Sequence[RankTrace],
    balances: Sequence[RankBalance],
    late_by_ms: dict[str, float],
) -> float | None:
    """Find how much longer than the mean of the others a rank does what made it late, ms of a step."""
    part = {"data": "data_wait_ms", "compute": "compute_ms", other_kind(ranks): "other_ms"}.get(kind)
    own = next(one for one in balances if one.rank == rank)
    others = [one for one in balances if one.rank != rank]
    if part is None:
        return late_by_ms[kind] / own.steps if own.steps else None
    longer_ms = getattr(own, part) - sum(getattr(one, part) for one in others) / len(others)
    return float(longer_ms) if longer_ms > 0 else None


def _usual_batch(ranks: dict[int, RankTrace], own: Sequence[Late]) -> dict[str, Any]:
    """Name worker, cause and file, each where it has most of the lateness by data; those alone.

    A worker is named where equal ones would hardly make as many of the late batches by chance.
    """
    costly = sorted(own, key=lambda one: -(one.late_by_data_ns or 0))[:_MOST_NAMED]
    known = [(batch, one.late_by_data_ns or 0) for one in costly if (batch := _batch(ranks, one)) is not None]
    in_all_ns = sum(ns for _, ns in known)
    found: dict[str, Any] = {}
    if not known:
        return found
    for fields in (("worker", "pid"), ("cause",), ("file",)):
        costs_ns: dict[tuple[Any, ...], int] = defaultdict(int)
        for batch, ns in known:
            costs_ns[tuple(getattr(batch, field) for field in fields)] += ns
        most = max(costs_ns, key=lambda key: costs_ns[key])
        if fields[0] == "worker" and not _is_unequal(
            [batch.worker for batch, ns in known if ns], most[0], ranks, own
        ):
            continue
        if 2 * costs_ns[most] >= in_all_ns:
            found |= zip(fields, most, strict=True)
    return found


def _is_unequal(
    makers: Sequence[int | None], worker: int | None, ranks: dict[int, RankTrace], own: Sequence[Late]
) -> bool:
    """Whether workers that make late batches alike would leave so many of them to one in few cases only."""
    of = {one.last for one in own if one.last is not None}
    workers = len({each.worker for rank in of for each in ranks[rank].batches if each is not None})
    late, made = len(makers), makers.count(worker)
    if workers < 2:
        return True
    chances = (comb(late, count) * (workers - 1) ** (late - count) for count in range(made, late + 1))
    return bool(workers * sum(chances) <= _BY_CHANCE * workers**late)


def _evidence(kind: str | None, longer_ms: float | None, batch: Mapping[str, Any]) -> str | None:
    """Say in words what made the rank late; None where nothing did clearly."""
    if kind is None or longer_ms is None:
        return None
    if kind != "data":
        return _EVIDENCE[kind].format(longer_ms)
    text = f"it waits {longer_ms:.1f} ms a step longer for data"
    worker = batch.get("worker")
    named = [batch.get("cause"), batch.get("file"), None if worker is None else f"worker {worker}"]
    known = [each for each in named if each is not None]
    return f"{text}: {', '.join(known)}" if known else text


def _severity(impact_pct: float | None) -> str | None:
    if impact_pct is None or impact_pct < _WARNING_PCT:
        return None
    return "critical" if impact_pct >= _CRITICAL_PCT else "warning"
