"""The ranks' loops beside each other, over all their steps: which rank the others wait for, and why.

Definitions: docs/definitions.md, "lockstep".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.device.lateness import MOVES, pattern_of
from iotrace.analysis.intervals import Times
from iotrace.analysis.loop.rank_loop import ALL_REDUCE, ALONE, SHARED, RankLoop
from iotrace.analysis.results import Imbalance, LockedRank, Lockstep
from iotrace.session.names import BACKWARD, FORWARD

_FEWEST = 8  # steps
_IN_STEP = 0.9  # of the steps: in so many the ranks have to be together
_MOST_AROUND = 64
_LATE_PERCENT = 5.0  # of the others' steps
_MOSTLY = 0.5  # of the wait
_PARTS = (*ALONE, *SHARED)
_WORK = SHARED[1:]
_CLEARLY = 2.0
_CHANCE = 3.0  # standard errors
_MUCH = 0.2  # of the wait
_NOW_AND_THEN = ("evaluation", "checkpoint", "writing")
_LATE_STEP = 0.05  # of a step, from which a wait in it makes it a late one


class _Reductions(msgspec.Struct, frozen=True):
    """How long each rank waits in each step for the one that comes last to the reduction of gradients, ns.

    `waits_ns` has the shape (ranks, steps), `last` the place of that rank.
    `timed`: how many steps all ranks timed.
    """

    waits_ns: Times
    last: Times
    timed: int


def lockstep_of(loops: Sequence[RankLoop], imbalance: Imbalance | None) -> Lockstep | None:
    """Compare what ranks do in the same steps; None of one, of few steps, and where they drift apart.

    Ranks that stay in step wait for each other. Nothing holds up an evaluation, a checkpoint or a data wait
    of one alone: the others wait for it in what they do longer. What they wait in the reduction of gradients
    is known where that was timed. Else `imbalance` knows by the collectives whether a longer forward or
    backward pass makes a rank late or is itself such a wait.
    """
    first = max((each.first for each in loops), default=0)
    behind = min((len(each.ends_ns) for each in loops), default=0)
    if len(loops) < 2 or behind - first < _FEWEST or not _in_step(loops, first, behind):
        return None
    steps = np.flatnonzero(np.logical_and.reduce([each.measured[first:behind] for each in loops])) + first
    if len(steps) < _FEWEST:
        return None
    reductions = _reductions(loops, steps)
    if reductions is None:
        loops = _as_backward(loops, steps)
    ranks = [_rank(each, steps) for each in loops]
    late = [
        _late(at, ranks, len(steps), _may_be_late_by(loop, imbalance), reductions)
        for at, loop in enumerate(loops)
    ]
    found = max(late, key=lambda one: one.wait_ms)
    at = next((at for at, each in enumerate(loops) if each.rank == found.late_rank), None)
    if at is not None:
        means = [None if own is None else own.mean(axis=1) for own in _accounts(loops, steps)]
        own = (each if each is None else float(each[at]) for each in means)
        others = (each if each is None else float(np.delete(each, at).mean()) for each in means)
        cpu_ms, cpu_delay_ms = _more_ms(*own, *others)
        found = replace(found, cpu_ms=cpu_ms, cpu_delay_ms=cpu_delay_ms)
    return found if reductions is None else _with_turns(found, loops, steps, reductions)


def _reductions(loops: Sequence[RankLoop], steps: Times) -> _Reductions | None:
    """Compare the ranks' waits in the same reductions; None where few were timed, or a rank has a device."""
    if any(each.has_device for each in loops):
        return None
    column = _PARTS.index(ALL_REDUCE)
    took_ns = np.stack([each.parts_ns[steps, column] for each in loops])
    timed = (took_ns > 0).all(axis=0)
    per_update = max(each.per_update for each in loops)
    if timed.sum() * per_update < _IN_STEP * (len(steps) - per_update):
        return None
    waits_ns = np.where(timed, took_ns - took_ns.min(axis=0), 0)
    return _Reductions(waits_ns, took_ns.argmin(axis=0), int(timed.sum()))


def _as_backward(loops: Sequence[RankLoop], steps: Times) -> Sequence[RankLoop]:
    """Count reductions as backward, which they lie in, where some ranks timed more of them than others."""
    column, backward = _PARTS.index(ALL_REDUCE), _PARTS.index(BACKWARD)
    timed = [float((each.parts_ns[steps, column] > 0).mean()) for each in loops]
    if max(timed) - min(timed) <= 1 - _IN_STEP:
        return loops
    found = []
    for each in loops:
        parts_ns = each.parts_ns.copy()
        parts_ns[:, backward] += parts_ns[:, column]
        parts_ns[:, column] = 0
        found.append(replace(each, parts_ns=parts_ns))
    return found


def _accounts(loops: Sequence[RankLoop], steps: Times) -> list[Times | None]:
    """Return what each rank computes in each step, and waits for a CPU: (ranks, steps); None: not known."""
    found: list[Times | None] = []
    for own in ([each.cpu_ns for each in loops], [each.cpu_delay_ns for each in loops]):
        known = all(len(each) > steps[-1] for each in own)
        found.append(np.stack([each[steps] for each in own]) if known else None)
    return found


def _more_ms(
    cpu_ns: float | None,
    delay_ns: float | None,
    others_cpu_ns: float | None,
    others_delay_ns: float | None,
) -> tuple[float | None, float | None]:
    """Return how much more a rank computes than others, and waits longer for a CPU, for as much."""
    if cpu_ns is None or others_cpu_ns is None:
        return None, None
    more_ms = (cpu_ns - others_cpu_ns) / 1e6
    if delay_ns is None or others_delay_ns is None or not others_cpu_ns:
        return more_ms, None
    return more_ms, (delay_ns - others_delay_ns * cpu_ns / others_cpu_ns) / 1e6


def _with_turns(
    found: Lockstep, loops: Sequence[RankLoop], steps: Times, reductions: _Reductions
) -> Lockstep:
    """Say which ranks came last in how many steps; where they do by turns, what all wait for, and why."""
    waits_ns, last = reductions.waits_ns, reductions.last
    long_ns = np.stack([(each.ends_ns - each.starts_ns)[steps] for each in loops])
    late = np.flatnonzero(waits_ns.max(axis=0) >= _LATE_STEP * long_ns.mean())
    counts = np.bincount(last[late], minlength=len(loops)).tolist()
    by_rank = {each.rank: count for each, count in zip(loops, counts, strict=True)}
    waited_ns = np.bincount(last[late], waits_ns.sum(axis=0)[late], minlength=len(loops)).tolist()
    late_pct = 100 * float(waits_ns.sum() / long_ns.sum())
    pattern = pattern_of(by_rank, dict(zip(by_rank, waited_ns, strict=True)))
    if pattern is None and _by_chance(found, loops, waits_ns):
        pattern, found = MOVES, replace(found, late_rank=None)
    own_ms = dict(zip(by_rank, (waits_ns.mean(axis=1) / 1e6).tolist(), strict=True))
    found = replace(
        found,
        ranks=[
            replace(each, late_steps=by_rank[each.rank], behind_ms=own_ms[each.rank]) for each in found.ranks
        ],
        timed_steps=reductions.timed,
        late_steps=len(late),
        pattern=pattern,
        late_pct=late_pct,
    )
    if found.pattern != MOVES or late_pct < _LATE_PERCENT:
        return found
    parts_ns = np.stack([each.parts_ns[steps] for each in loops])
    first = waits_ns.argmax(axis=0)[late]
    longer_ns = parts_ns[last[late], late] - parts_ns[first, late]
    means_ms = zip(_PARTS, (longer_ns.sum(axis=0) / len(steps) / 1e6).tolist(), strict=True)
    longer = {part: ms for part, ms in means_ms if ms > 0 and part != ALL_REDUCE}
    accounts = _accounts(loops, steps)
    of_late, of_first = (
        [None if own is None else float(own[ranks, late].sum()) / len(steps) for own in accounts]
        for ranks in (last[late], first)
    )
    cpu_ms, cpu_delay_ms = _more_ms(*of_late, *of_first)
    return replace(
        found,
        ranks=[replace(each, waits_ms=own_ms[each.rank]) for each in found.ranks],
        late_rank=None,
        wait_ms=sum(own_ms.values()) / len(own_ms),
        wait_pct=late_pct,
        late_by_ms=longer,
        cpu_ms=cpu_ms,
        cpu_delay_ms=cpu_delay_ms,
        kind=_kind(longer, float(waits_ns.max(axis=0)[late].sum()) / len(steps) / 1e6),
    )


def _by_chance(found: Lockstep, loops: Sequence[RankLoop], waits_ns: Times) -> bool:
    """Whether the late rank is no later than chance makes it: by turns others are as late.

    What a rank does in few steps alone, such as an evaluation, is no chance.
    """
    at = next((at for at, each in enumerate(loops) if each.rank == found.late_rank), None)
    now_and_then_ms = sum(found.late_by_ms.get(part, 0.0) for part in _NOW_AND_THEN)
    if at is None or now_and_then_ms >= _MUCH * found.wait_ms:
        return False
    longer_ns = np.delete(waits_ns, at, axis=0).mean(axis=0) - waits_ns[at]
    return bool(longer_ns.mean() < _CHANCE * longer_ns.std() / math.sqrt(len(longer_ns)))


def _in_step(loops: Sequence[RankLoop], first: int, behind: int) -> bool:
    """Whether no rank gets ahead by more than a step around takes: in that one it waits for the others.

    Where gradients are accumulated it may get ahead until the next update.
    """
    longest = np.maximum.reduce([(each.ends_ns - each.starts_ns)[first:behind] for each in loops])
    around = min(_MOST_AROUND, max(each.per_update for each in loops))
    padded = np.pad(longest, around)
    longest = np.maximum.reduce([padded[at : at + len(longest)] for at in range(2 * around + 1)])
    ends = [each.ends_ns[first:behind] for each in loops]
    apart = np.maximum.reduce(ends) - np.minimum.reduce(ends)
    return bool((apart <= longest).mean() >= _IN_STEP)


def _may_be_late_by(loop: RankLoop, imbalance: Imbalance | None) -> tuple[str, ...]:
    """Choose the parts that make a rank late where they are longer than the others'.

    A device may work through a data wait of its host, and the host wait for the device in any phase.
    """
    if loop.has_device:
        return tuple(part for part in ALONE if part != "data")
    late = [] if imbalance is None or imbalance.withheld else imbalance.stragglers[:2]
    most, *second = [one.waited_for_ms for one in late] or [0.0]
    is_clear = all(
        most >= _CLEARLY * each for each in second
    )  # else few profiled steps may name the other one
    is_last = is_clear and any(one.rank == loop.rank and one.severity is not None for one in late[:1])
    return (*ALONE, *_WORK) if is_last else ALONE


def _rank(loop: RankLoop, steps: Times) -> LockedRank:
    parts = zip(_PARTS, (loop.parts_ns[steps].mean(axis=0) / 1e6).tolist(), strict=True)
    long_ns = (loop.ends_ns - loop.starts_ns)[steps]
    return LockedRank(rank=loop.rank, step_ms=float(long_ns.mean()) / 1e6, parts_ms=dict(parts))


def _late(
    at: int, ranks: Sequence[LockedRank], steps: int, parts: Sequence[str], reductions: _Reductions | None
) -> Lockstep:
    own, waits_ms = ranks[at], [_waited_ms(each, ranks[at], parts) for each in ranks]
    if reductions is not None:
        # What it waits itself in other steps it has not made the others wait.
        means_ms = reductions.waits_ns.mean(axis=1) / 1e6
        timed_ms = (means_ms - means_ms[at]).tolist()
        waits_ms = [max(pair) for pair in zip(waits_ms, timed_ms, strict=True)]
        parts = (*parts, *(part for part in _WORK if part not in parts))
    others = [replace(each, waits_ms=ms) for each, ms in zip(ranks, waits_ms, strict=True) if each is not own]
    wait_ms = sum(each.waits_ms or 0.0 for each in others) / len(others)
    wait_pct = 100 * wait_ms * len(others) / sum(each.step_ms for each in others)
    is_late = wait_pct >= _LATE_PERCENT
    usual = {part: sum(each.parts_ms[part] for each in others) / len(others) for part in parts}
    longer = {part: own.parts_ms[part] - usual[part] for part in parts if own.parts_ms[part] > usual[part]}
    return Lockstep(
        steps=steps,
        ranks=sorted([own, *others] if is_late else ranks, key=lambda each: each.rank),
        late_rank=own.rank if is_late else None,
        wait_ms=wait_ms,
        wait_pct=wait_pct,
        late_by_ms=longer,
        kind=_kind(longer, wait_ms) if is_late else None,
    )


def _kind(longer: dict[str, float], wait_ms: float) -> str | None:
    """Choose the part that has half of the wait; of both passes, where they have it, the longer."""
    passes = {part: longer[part] for part in (FORWARD, BACKWARD) if part in longer}
    most = max(longer, key=lambda part: longer[part], default=None)
    if most is not None and longer[most] >= _MOSTLY * wait_ms:
        return most
    together = sum(passes.values()) >= _MOSTLY * wait_ms
    return max(passes, key=lambda part: passes[part]) if passes and together else None


def _waited_ms(other: LockedRank, own: LockedRank, parts: Sequence[str]) -> float:
    """Find how long a rank waits for `own`: what else it does longer, as far as that is due to `parts`."""
    longer = {part: ms - own.parts_ms[part] for part, ms in other.parts_ms.items()}
    due_ms = sum(max(0.0, -longer[part]) for part in parts)
    return min(due_ms, sum(max(0.0, longer[part]) for part in SHARED))
