"""The ranks' loops beside each other, over all their steps: which rank the others wait for, and why.

Definitions: docs/definitions.md, "lockstep".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.loop.rank_loop import ALONE, SHARED, RankLoop
from iotrace.analysis.results import Imbalance, LockedRank, Lockstep

_FEWEST = 8  # steps
_IN_STEP = 0.9  # of the steps: in so many the ranks have to be together
_MOST_AROUND = 64
_LATE_PERCENT = 5.0  # of the others' steps
_MOSTLY = 0.5  # of the wait


def lockstep_of(loops: Sequence[RankLoop], imbalance: Imbalance | None) -> Lockstep | None:
    """Compare what ranks do in the same steps; None of one, of few steps, and where they drift apart.

    Ranks that stay in step wait for each other. Nothing holds up an evaluation, a checkpoint or a data wait
    of one alone: the others wait for it in what they do longer. Whether a longer forward or backward pass
    makes a rank late or is itself such a wait, `imbalance` knows by the collectives.
    """
    first = max((each.first for each in loops), default=0)
    behind = min((len(each.ends_ns) for each in loops), default=0)
    if len(loops) < 2 or behind - first < _FEWEST or not _in_step(loops, first, behind):
        return None
    ranks = [_rank(each, first, behind) for each in loops]
    late = [
        _late(each, ranks, behind - first, _may_be_late_by(loop, imbalance))
        for each, loop in zip(ranks, loops, strict=True)
    ]
    return max(late, key=lambda one: one.wait_ms)


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
    late = [] if imbalance is None or imbalance.withheld else imbalance.stragglers[:1]
    is_last = any(one.rank == loop.rank and one.severity is not None for one in late)
    return (*ALONE, *SHARED) if is_last else ALONE


def _rank(loop: RankLoop, first: int, behind: int) -> LockedRank:
    parts = zip((*ALONE, *SHARED), (loop.parts_ns[first:behind].mean(axis=0) / 1e6).tolist(), strict=True)
    long_ns = (loop.ends_ns - loop.starts_ns)[first:behind]
    return LockedRank(rank=loop.rank, step_ms=float(long_ns.mean()) / 1e6, parts_ms=dict(parts))


def _late(own: LockedRank, ranks: Sequence[LockedRank], steps: int, parts: Sequence[str]) -> Lockstep:
    others = [replace(each, waits_ms=_waited_ms(each, own, parts)) for each in ranks if each is not own]
    wait_ms = sum(each.waits_ms or 0.0 for each in others) / len(others)
    wait_pct = 100 * wait_ms * len(others) / sum(each.step_ms for each in others)
    is_late = wait_pct >= _LATE_PERCENT
    usual = {part: sum(each.parts_ms[part] for each in others) / len(others) for part in parts}
    longer = {part: own.parts_ms[part] - usual[part] for part in parts if own.parts_ms[part] > usual[part]}
    most = max(longer, key=lambda part: longer[part], default=None)
    return Lockstep(
        steps=steps,
        ranks=sorted([own, *others] if is_late else ranks, key=lambda each: each.rank),
        late_rank=own.rank if is_late else None,
        wait_ms=wait_ms,
        wait_pct=wait_pct,
        late_by_ms=longer,
        kind=most if most is not None and longer[most] >= _MOSTLY * wait_ms and is_late else None,
    )


def _waited_ms(other: LockedRank, own: LockedRank, parts: Sequence[str]) -> float:
    """Find how long a rank waits for `own`: what else it does longer, as far as that is due to `parts`."""
    longer = {part: ms - own.parts_ms[part] for part, ms in other.parts_ms.items()}
    due_ms = sum(max(0.0, -longer[part]) for part in parts)
    return min(due_ms, sum(max(0.0, longer[part]) for part in SHARED))
