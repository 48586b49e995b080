"""What rules on the ranks of a job rest on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from iotrace.analysis.device.lateness import MOVES
from iotrace.analysis.results import Imbalance, Lockstep, RankReport, Straggler

LATE_PERCENT = 10.0  # of a step that the others wait for one rank
_MOSTLY_PERCENT = 50.0  # of what makes a rank late
_MOSTLY = 0.5
_MUCH = 0.3
_CHANCE = 0.05
_CLEAR_PERCENT = 50.0  # of a step: chance makes no rank late by so much in each
PASSES = ("forward", "backward")
_OF_THREAD = ("compute", "host")  # kinds of work that a thread does where there is no device


class LateRank(msgspec.Struct, frozen=True, kw_only=True):
    """The rank that the others wait for: for how much of their steps, and what it does longer, ms a step.

    `kind` is the part of `Lockstep` or the kind of `Straggler` that has most of it; None where none has.
    `late_steps`: how many it made late of how many; `by_turns`, where no rank stays the late one.
    """

    rank: int
    others: int = 1
    pct: float
    kind: str | None = None
    longer_ms: dict[str, float] = {}
    in_words: str | None = None
    late_steps: tuple[int, int] | None = None
    by_turns: int = 0
    worker: int | None = None
    cpu_ms: float | None = None  # how much more it computes, and waits for a CPU, in a step
    cpu_delay_ms: float | None = None
    is_least: bool = False  # `pct` is a lower bound
    profiled: tuple[float, int] | None = None  # % of so many profiled steps, where that is more
    wait_ms: float | None = None  # a step: how long each other rank waits for it; over all steps

    @property
    def mostly(self) -> str | None:
        """Whether its passes take longer mostly as it computes more (`work`) or waits for a CPU (`cpu`)."""
        longer_ms = sum(self.longer_ms.get(part, 0.0) for part in PASSES)
        cpu_ms, delay_ms = self.cpu_ms or 0.0, self.cpu_delay_ms or 0.0
        if delay_ms >= _MOSTLY * longer_ms > 0:
            return "cpu"
        return "work" if cpu_ms >= _MUCH * longer_ms > 0 and cpu_ms > delay_ms else None


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a job's last start, and the one that the others wait for."""

    ranks: Sequence[RankReport]
    late: LateRank | None = None
    behind_ms: dict[int, float] = {}  # a step, by rank: its wait in collectives for the last one, where timed
    last_in: dict[int, tuple[int, int]] = {}  # by rank: late steps in which it came last, of how many
    in_step: bool = False
    imbalance: Imbalance | None = None

    @property
    def fed(self) -> list[int]:
        """The ranks that ask no loader for a batch, in step with ranks that do."""
        if not self.in_step or not any(each.loaders for each in self.ranks):
            return []
        return [each.rank for each in self.ranks if each.steps.count and not each.loaders]

    def rank(self, number: int) -> RankReport | None:
        """Return a rank's report."""
        return next((each for each in self.ranks if each.rank == number), None)


def job_facts(
    ranks: Sequence[RankReport], imbalance: Imbalance | None, lockstep: Lockstep | None
) -> JobFacts:
    """Choose the late rank: over all steps where the loops tell, else by the profiled collectives."""
    late = None if lockstep is None else _over_all_steps(lockstep, imbalance)
    # Where all steps were timed, few profiled ones tell no more.
    is_timed = lockstep is not None and lockstep.timed_steps is not None
    if late is None and imbalance is not None and not is_timed:
        late = _by_collectives(imbalance)
        if lockstep is not None and late is not None and _are_alike(late, ranks):
            late = None
    return JobFacts(
        ranks=ranks,
        late=late,
        behind_ms={
            each.rank: each.behind_ms
            for each in (() if lockstep is None else lockstep.ranks)
            if each.behind_ms is not None
        },
        last_in={
            each.rank: (each.late_steps, lockstep.late_steps)
            for each in (() if lockstep is None else lockstep.ranks)
            if lockstep is not None and lockstep.late_steps and each.late_steps is not None
        },
        in_step=lockstep is not None,
        imbalance=imbalance,
    )


def _over_all_steps(found: Lockstep, imbalance: Imbalance | None) -> LateRank | None:
    if found.pattern == MOVES and (found.late_pct or 0.0) >= LATE_PERCENT:
        return _by_turns(found)
    if found.late_rank is None or found.wait_pct < LATE_PERCENT:
        return None
    _, profiled = (None, None) if imbalance is None else imbalance.of(found.late_rank)
    # What a rank computes longer in its backward pass hides a part of the others' wait there.
    is_least = found.kind in PASSES and found.timed_steps is None
    return LateRank(
        rank=found.late_rank,
        others=len(found.ranks) - 1,
        pct=found.wait_pct,
        kind=found.kind,
        longer_ms=found.late_by_ms,
        cpu_ms=found.cpu_ms,
        cpu_delay_ms=found.cpu_delay_ms,
        worker=None if profiled is None else profiled.worker,
        is_least=is_least,
        wait_ms=found.wait_ms,
        profiled=_profiled(found, imbalance) if is_least else None,
    )


def _profiled(found: Lockstep, imbalance: Imbalance | None) -> tuple[float, int] | None:
    own, late = (None, None) if imbalance is None else imbalance.of(found.late_rank or 0)
    pct = 0.0 if late is None else late.impact_pct or 0.0
    return (pct, own.steps) if own is not None and pct >= found.wait_pct + 1 else None


def _by_turns(found: Lockstep) -> LateRank:
    most = max(found.ranks, key=lambda each: each.late_steps or 0)
    return LateRank(
        rank=most.rank,
        others=len(found.ranks) - 1,
        pct=found.late_pct or 0.0,
        kind=found.kind,
        longer_ms=found.late_by_ms,
        cpu_ms=found.cpu_ms,
        cpu_delay_ms=found.cpu_delay_ms,
        late_steps=(most.late_steps or 0, found.late_steps or 0),
        by_turns=sum(bool(each.late_steps) for each in found.ranks),
    )


def _by_collectives(found: Imbalance) -> LateRank | None:
    late = max(found.stragglers, key=lambda each: each.impact_pct or 0.0, default=None)
    turns_pct = (found.late_pct or 0.0) if found.pattern == MOVES else 0.0
    if late is None or max(late.impact_pct or 0.0, turns_pct) < LATE_PERCENT:
        return None
    turns = turns_pct >= LATE_PERCENT
    late_steps, of = late.late_steps, found.late_steps or 0
    is_clear = late_steps == of and (late.impact_pct or 0.0) >= _CLEAR_PERCENT
    known = not turns and not is_clear and of and late_steps is not None
    if known and _by_chance(late_steps or 0, of, found.ranks_seen):
        return None
    own = next((each for each in found.ranks if each.rank == late.rank), None)
    steps = own.steps if own is not None and own.steps else 1
    return LateRank(
        rank=late.rank,
        others=found.ranks_seen - 1,
        pct=turns_pct if turns else late.impact_pct or 0.0,
        kind=_kind_by_turns(found) if turns else _kind(late),
        longer_ms={kind: ms / steps for kind, ms in late.late_by_ms.items()},
        in_words=late.evidence,
        late_steps=(late.late_steps or 0, found.late_steps or 0) if turns or found.pattern else None,
        by_turns=sum(bool(each.late_steps) for each in found.stragglers) if turns else 0,
        worker=late.worker,
    )


def _are_alike(late: LateRank, ranks: Sequence[RankReport]) -> bool:
    """Whether a rank that works longer in few profiled steps does not do so over all steps.

    Its thread then has computed, and been ready to run, no longer than the others', by half of that. Of a
    device the thread tells nothing.
    """
    if late.kind not in _OF_THREAD or late.by_turns or any(each.accelerator is not None for each in ranks):
        return False
    spent = {each.rank: (each.steps.thread_cpu_ms, each.steps.thread_run_delay_ms) for each in ranks}
    known = {
        rank: cpu + delay for rank, (cpu, delay) in spent.items() if cpu is not None and delay is not None
    }
    own = known.pop(late.rank, None)
    if own is None or len(known) != late.others:
        return False
    return own - sum(known.values()) / len(known) < _MOSTLY * sum(
        late.longer_ms.get(part, 0.0) for part in _OF_THREAD
    )


def _by_chance(late: int, steps: int, ranks: int) -> bool:
    """Whether a rank of several comes last in so many of few steps by chance."""
    share = 1 / max(2, ranks)
    ways = (math.comb(steps, count) * share**count * (1 - share) ** (steps - count) for count in range(late))
    return 1 - sum(ways) > _CHANCE


def _kind(late: Straggler) -> str | None:
    return "data" if (late.by_data_pct or 0.0) >= _MOSTLY_PERCENT else late.kind


def _kind_by_turns(found: Imbalance) -> str | None:
    skew_ms = sum(sum(each.late_by_ms.values()) for each in found.stragglers)
    data_ms = sum(each.late_by_ms.get("data", 0.0) for each in found.stragglers)
    return "data" if skew_ms and 100 * data_ms >= _MOSTLY_PERCENT * skew_ms else None
