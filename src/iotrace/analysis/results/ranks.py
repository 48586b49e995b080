"""Ranks beside each other."""

from __future__ import annotations

from iotrace.analysis.results.base import ReportPart


class RankBalance(ReportPart, frozen=True, kw_only=True):
    """Means per step of the traced window, in ms; the four parts sum to the step.

    `communication_wait_ms` is None where no collective was matched.
    """

    rank: int
    steps: int
    step_ms: float
    compute_ms: float
    communication_wait_ms: float | None
    data_wait_ms: float
    other_ms: float


class Collectives(ReportPart, frozen=True, kw_only=True):
    """Collectives that could be matched between ranks; skew is the longest wait of a rank in one."""

    matched: int
    unmatched: int
    skew_ms_mean: float | None
    skew_ms_max: float | None


class Straggler(ReportPart, frozen=True, kw_only=True):
    """What a rank costs the others: `waited_for_ms` is a total over them and the window.

    `by_data_pct` is the share of its lateness that its own data waits explain. `kind` is what made it late:
    ``data``, ``compute``, ``launch`` (late launches), ``host``; by `kind_ms` a step longer than the others.
    """

    rank: int
    last_to_arrive: int
    waited_for_ms: float
    impact_pct: float | None
    severity: str | None
    by_data_pct: float | None
    kind: str | None
    kind_ms: float | None


class LateCollective(ReportPart, frozen=True, kw_only=True):
    name: str
    elements: int | None
    step: int | None
    last_rank: int | None
    skew_ms: float
    data_wait_ms: float | None
    late_by_data_ms: float | None


class LateKind(ReportPart, frozen=True, kw_only=True):
    """All matched collectives of a name: which rank came last most often, `last_count` times.

    `tied`: several came last together, so that none is.
    """

    name: str
    matched: int
    tied: int
    last_rank: int | None
    last_count: int
    skew_ms: float


class Imbalance(ReportPart, frozen=True, kw_only=True):
    """Across ranks. `spread` is (max - mean) / mean over the ranks."""

    ranks_seen: int
    world_size: int | None
    ranks: list[RankBalance]
    spread: dict[str, float | None]
    collectives: Collectives
    stragglers: list[Straggler]
    worst: list[LateCollective]
    late_kinds: list[LateKind]
