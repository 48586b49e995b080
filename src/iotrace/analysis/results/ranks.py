"""Ranks beside each other."""

from __future__ import annotations

from typing import Annotated

import msgspec

from iotrace.analysis.results.base import ReportPart, figure


class RankBalance(ReportPart, frozen=True, kw_only=True):
    """Means per step of the traced window."""

    rank: Annotated[int, figure("its number")]
    steps: Annotated[int, figure("of the window")]
    step_ms: Annotated[float, figure("their mean; the four parts sum to it")]
    compute_ms: Annotated[float, figure("kernels that are no collectives; without a device, operators")]
    communication_wait_ms: Annotated[float | None, figure("waits as above, at the start of the collective", null="no collective was matched")] = None
    data_wait_ms: Annotated[float, figure("the raw data wait")]
    other_ms: Annotated[float, figure("the rest")]


class CollectiveSpeed(ReportPart, frozen=True, kw_only=True):
    """Matched collectives of a kind, type and size, without the waits for late ranks: the least of all ranks."""

    kind: Annotated[str, figure("what it does")]
    dtype: Annotated[str | None, figure("its type", null="the trace does not state it")] = None
    bytes_per_call: Annotated[int | None, figure("what a call moves of a rank, the most of all", null="the trace does not state it")] = None
    calls: Annotated[int, figure("how often")]
    least_us: Annotated[float, figure("the shortest that any rank stayed in each, all together")]
    algorithm_gb_per_s: Annotated[float | None, figure("bytes / `least_us`", null="the trace does not state the bytes")] = None
    bus_gb_per_s: Annotated[float | None, figure("that × nccl-tests' factor for the ranks", null="as above; it has none for this kind")] = None
    waited_us: Annotated[dict[str, float], figure("by rank: how much longer it stayed in them")]


class Collectives(ReportPart, frozen=True, kw_only=True):
    """Collectives that could be matched between ranks; skew is the longest wait of a rank in one."""

    matched: Annotated[int, figure("collectives that ranks have in common")]
    unmatched: Annotated[int, figure("those of which a rank has none")]
    skew_ms_mean: Annotated[float | None, figure("longest wait of a rank in one, the mean", null="none matched")] = None
    skew_ms_max: Annotated[float | None, figure("the same, the most", null="none matched")] = None
    speeds: Annotated[list[CollectiveSpeed], figure("by kind, type and size, the most time first")] = msgspec.field(default_factory=list)


class Straggler(ReportPart, frozen=True, kw_only=True):
    """What a rank costs the others, over them and the window; of a rank's first collective what arose in it."""

    rank: Annotated[int, figure("its number")]
    last_to_arrive: Annotated[int, figure("collectives that waited for it")]
    waited_for_ms: Annotated[float, figure("time of all others in which they waited for it and did not compute")]
    impact_pct: Annotated[float | None, figure("the share of that in their steps' length")] = None
    severity: Annotated[str | None, figure("`warning` from 10 %, `critical` from 20 %", null="below")] = None
    by_data_pct: Annotated[float | None, figure("the share of its lateness that its own data waits explain", null="nothing is left to explain")] = None
    kind: Annotated[str | None, figure("what made it late: `data`, `compute`, `communication`, `launch` or `host`", null="not sure")] = None
    kind_ms: Annotated[float | None, figure("by how much a step it does that longer than the others", null="it does not")] = None
    late_by_ms: Annotated[dict[str, float], figure("by kind, what it did longer, in all, than the rank that came first")] = msgspec.field(default_factory=dict)
    late_steps: Annotated[int | None, figure("steps that it made late")] = None
    before_window_ms: Annotated[float | None, figure("how late it was when the window began")] = None
    worker: Annotated[int | None, figure("the worker with most of its lateness by data", null="not of the kind `data`, or others may be as late by chance")] = (
        None
    )
    pid: Annotated[int | None, figure("its pid", null="the same")] = None
    file: Annotated[str | None, figure("the file likewise", null="the same")] = None
    cause: Annotated[str | None, figure("the cause likewise", null="the same")] = None
    evidence: Annotated[str | None, figure("the same in words", null="not sure")] = None


class LateCollective(ReportPart, frozen=True, kw_only=True):
    """A collective and its last rank; then the batch that made it late."""

    name: Annotated[str, figure("its name")]
    elements: Annotated[int | None, figure("how many it moved")] = None
    step: Annotated[int | None, figure("in which step")] = None
    last_rank: Annotated[int | None, figure("the rank that came last", null="several came together, or `unsure`")] = None
    skew_ms: Annotated[float, figure("the longest wait of a rank in it")]
    data_wait_ms: Annotated[float | None, figure("the last rank's raw data wait since its collective before", null="`last_rank` is")] = None
    late_by_data_ms: Annotated[float | None, figure("by how much that is longer than that of any other rank", null="`last_rank` is")] = None
    unsure: Annotated[bool, figure("whether the clocks do not confirm which rank was last")] = False
    late_by_ms: Annotated[dict[str, float], figure("by kind beyond the rank that came first")] = msgspec.field(default_factory=dict)
    batch: Annotated[int | None, figure("the batch of its longest data wait", null="it was not late by data, or nothing recorded it")] = None
    worker: Annotated[int | None, figure("its worker", null="the same")] = None
    pid: Annotated[int | None, figure("that worker's pid", null="the same")] = None
    cause: Annotated[str | None, figure("the cause of that wait", null="the same")] = None
    file: Annotated[str | None, figure("the file of that wait", null="the same")] = None


class LateKind(ReportPart, frozen=True, kw_only=True):
    """All matched collectives of a name."""

    name: Annotated[str, figure("their name", said="collective", place=7)]
    matched: Annotated[int, figure("how many ranks have in common", said="calls", place=2)]
    tied: Annotated[int, figure("of which several ranks came last", said="tied", place=5)]
    last_rank: Annotated[int | None, figure("the rank that came last most often", null="all are tied", said="last rank", place=3, absent="-")] = None
    last_count: Annotated[int, figure("how often it did", said="times", place=4)]
    skew_ms: Annotated[float, figure("the sum of their skews; a delay that several pending ones wait for counts once", said="skew ms", place=1)]
    unsure: Annotated[int, figure("of which the clocks do not confirm who was last", said="unsure", place=6)] = 0


class LateGroup(ReportPart, frozen=True, kw_only=True):
    """All matched collectives of a kind and process group."""

    kind: Annotated[str, figure("what they do", said="kind", place=6)]
    group: Annotated[str | None, figure("the process group", null="the trace does not state it", said="group", place=5, absent="-")] = None
    ranks: Annotated[list[int], figure("that take part")]
    matched: Annotated[int, figure("as above", said="calls", place=1)]
    tied: Annotated[int, figure("as above")]
    unsure: Annotated[int, figure("as above")]
    skew_ms: Annotated[float, figure("as above")]
    late_rank: Annotated[int | None, figure("the rank that came last most often", null="`unknown_why` says why", said="late rank", place=2)] = None
    late_calls: Annotated[int | None, figure("in how many of them", null="`late_rank` is")] = None
    late_pct: Annotated[float | None, figure("of the matched", null="`late_rank` is", said="in %", place=4)] = None
    late_ms: Annotated[
        float | None, figure("how much later than the median of the others, the mean of these calls", null="`late_rank` is", said="late ms", place=3)
    ] = None
    unknown_why: Annotated[str | None, figure("why no rank is named", null="one is", said="unknown, as", place=7, absent="-")] = None


class Imbalance(ReportPart, frozen=True, kw_only=True):
    """The ranks beside each other."""

    ranks_seen: int
    world_size: int | None = None
    incarnation: Annotated[int, figure("restarts of the job before the start that is compared")] = 0
    ranks: Annotated[list[RankBalance], figure("the parts of each rank's step in the window, which sum to `step_ms`")]
    spread: Annotated[dict[str, float | None], figure("of each part, (max - mean) / mean over the ranks", null="the mean is 0")]
    collectives: Collectives
    stragglers: Annotated[list[Straggler], figure("a row for each rank, the costliest first; empty where none is matched")]
    worst: Annotated[list[LateCollective], figure("the five collectives with the largest skew")]
    late_kinds: Annotated[list[LateKind], figure("the matched collectives by `name`")]
    clock_bound_us: Annotated[float | None, figure("how far the clocks are known", null="no clock was compared")] = None
    withheld: Annotated[str | None, figure("why no rank is named", null="a rank is named, or none is late")] = None
    pattern: Annotated[str | None, figure("whether the late rank `stays` or `moves`", null="fewer late steps, or between the two")] = None
    late_steps: Annotated[int | None, figure("steps that a rank made late", null="a trace has no steps, or `withheld`")] = None
    late_pct: Annotated[float | None, figure("share of all ranks' steps in which they wait for a late one", null="nothing matched, or `withheld`")] = None
    late_groups: Annotated[list[LateGroup], figure("the matched collectives by `kind`, process `group` and the `ranks` that take part")] = msgspec.field(
        default_factory=list
    )

    def of(self, rank: int, incarnation: int | None = None) -> tuple[RankBalance | None, Straggler | None]:
        """Return what a rank's step is made of, and how the others wait for it, where that is known.

        Of a restarted job nothing is known of other starts than the one that is compared.
        """
        if incarnation not in (None, self.incarnation):
            return None, None
        balance = next((one for one in self.ranks if one.rank == rank), None)
        return balance, next((one for one in self.stragglers if one.rank == rank), None)


class LockedRank(ReportPart, frozen=True, kw_only=True):
    """Means per step of a rank's loop."""

    rank: Annotated[int, figure("its number")]
    step_ms: Annotated[float, figure("their mean, evaluation in them; the parts sum to it")]
    parts_ms: Annotated[
        dict[str, float],
        figure(
            "`evaluation`, `checkpoint`, `data`, `writing`, `all_reduce`, `backward`, `forward`, `optimizer`, `other`: an instant is of the first that holds it"
        ),
    ]
    waits_ms: Annotated[float | None, figure("how long it waits for the late rank, or by turns for late ones", null="it is the late one, or none is")] = None
    late_steps: Annotated[int | None, figure("steps in which it came last, and the others waited 5 % of a step or more", null="`timed_steps` is")] = None
    behind_ms: Annotated[float | None, figure("how long it waits, in collectives, for the rank that comes last in each step", null="`timed_steps` is")] = None


class Lockstep(ReportPart, frozen=True, kw_only=True):
    """The ranks' loops beside each other over the steps that all have in common, warm-up aside."""

    steps: Annotated[int, figure("how many are compared")]
    ranks: Annotated[list[LockedRank], figure("the ranks, by number")]
    late_rank: Annotated[int | None, figure("the rank that the others wait for", null="none in 5 % of their steps, or several by turns")] = None
    wait_ms: Annotated[float, figure("how long each of the others waits for it; by turns, each rank for a late one", "ms per step")]
    wait_pct: Annotated[float, figure("the share of that in their steps")]
    late_by_ms: Annotated[
        dict[str, float],
        figure("by part, what the late rank does longer than the others; by turns, than who waits longest", "ms per step"),
    ]
    kind: Annotated[str | None, figure("the part that has at least half of the wait", null="none has")] = None
    timed_steps: Annotated[int | None, figure("in how many the reduction of gradients was timed on all ranks", null="in few")] = None
    late_steps: Annotated[int | None, figure("steps that a rank made late", null="`timed_steps` is")] = None
    cpu_ms: Annotated[float | None, figure("how much more its training thread computes than the others'", "ms per step", null="not known")] = None
    cpu_delay_ms: Annotated[float | None, figure("how much longer it is ready without a CPU, for as much computing", "ms per step", null="not known")] = None
    pattern: Annotated[str | None, figure("whether the late rank `stays` or `moves`", null="the same; fewer late steps, or between the two")] = None
    late_pct: Annotated[float | None, figure("share of all ranks' steps in which they wait in a reduction for a late one", null="`timed_steps` is")] = None

    @property
    def tells(self) -> bool:
        """Whether all steps tell who is waited for, or that nobody is."""
        return self.timed_steps is not None or any(each.waits_ms for each in self.ranks)

    def agrees(self, rank: int) -> bool:
        """Whether nothing that all steps tell speaks against it that `rank` is waited for in a few of them."""
        return not self.tells or rank == self.late_rank
