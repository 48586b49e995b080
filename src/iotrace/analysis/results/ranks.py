"""Ranks beside each other."""

from __future__ import annotations

from typing import Annotated

import msgspec

from iotrace.analysis.results.base import ReportPart
from iotrace.analysis.results.figure import figure


class RankBalance(ReportPart, frozen=True, kw_only=True):
    """Means per step of the traced window, in ms; the four parts sum to the step.

    `communication_wait_ms` is None where no collective was matched.
    """

    rank: int
    steps: int
    step_ms: float
    compute_ms: float
    communication_wait_ms: float | None = None
    data_wait_ms: float
    other_ms: float


class Collectives(ReportPart, frozen=True, kw_only=True):
    """Collectives that could be matched between ranks; skew is the longest wait of a rank in one."""

    matched: Annotated[int, figure("collectives that ranks have in common")]
    unmatched: Annotated[int, figure("those of which a rank has none")]
    skew_ms_mean: Annotated[float | None, figure("longest wait of a rank in one, the mean", null="none matched")] = None
    skew_ms_max: Annotated[float | None, figure("the same, the most", null="none matched")] = None


class Straggler(ReportPart, frozen=True, kw_only=True):
    """What a rank costs the others: `waited_for_ms` is a total over them and the window.

    `by_data_pct` is the share of its lateness that its own data waits explain. `kind` is what made it late:
    ``data``, ``compute``, ``communication`` (of another group), ``launch`` (late launches), ``host``; by
    `kind_ms` a step longer than the others. `late_by_ms` has by kind what it did longer, in all, than the
    rank that came first; `late_steps` counts the steps that it made late. `before_window_ms` is how late it
    was when the window began. `worker`, `file`, `cause` have most of its lateness by data.
    """

    rank: int
    last_to_arrive: int
    waited_for_ms: float
    impact_pct: float | None = None
    severity: str | None = None
    by_data_pct: float | None = None
    kind: str | None = None
    kind_ms: float | None = None
    late_by_ms: dict[str, float] = msgspec.field(default_factory=dict)
    late_steps: int | None = None
    before_window_ms: float | None = None
    worker: int | None = None
    pid: int | None = None
    file: str | None = None
    cause: str | None = None
    evidence: str | None = None


class LateCollective(ReportPart, frozen=True, kw_only=True):
    """A collective and its last rank; `late_by_ms` by kind beyond the rank that came first; then its batch.

    `unsure`: the clocks do not confirm which rank was last, so that none is named.
    """

    name: str
    elements: int | None = None
    step: int | None = None
    last_rank: int | None = None
    skew_ms: float
    data_wait_ms: float | None = None
    late_by_data_ms: float | None = None
    unsure: bool = False
    late_by_ms: dict[str, float] = msgspec.field(default_factory=dict)
    batch: int | None = None
    worker: int | None = None
    pid: int | None = None
    cause: str | None = None
    file: str | None = None


class LateKind(ReportPart, frozen=True, kw_only=True):
    """All matched collectives of a name: which rank came last most often, `last_count` times.

    `tied`: several came last together, so that none is. `unsure`: the clocks do not confirm which one was.
    """

    name: str
    matched: int
    tied: int
    last_rank: int | None = None
    last_count: int
    skew_ms: float
    unsure: int = 0


class LateGroup(ReportPart, frozen=True, kw_only=True):
    """All matched collectives of a kind and process group: which of its `ranks` came last most often.

    `late_ms` is the mean, over the `late_calls` in which it did, of how much later than the median of the
    others it came. `tied` and `unsure` as of `LateKind`; `unknown_why`: why no rank is named.
    """

    kind: str
    group: str | None = None
    ranks: list[int]
    matched: int
    tied: int
    unsure: int
    skew_ms: float
    late_rank: int | None = None
    late_calls: int | None = None
    late_pct: float | None = None
    late_ms: float | None = None
    unknown_why: str | None = None


class Imbalance(ReportPart, frozen=True, kw_only=True):
    """The ranks beside each other."""

    ranks_seen: int
    world_size: int | None = None
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

    def of(self, rank: int) -> tuple[RankBalance | None, Straggler | None]:
        """Return what a rank's step is made of, and how the others wait for it, where that is known."""
        balance = next((one for one in self.ranks if one.rank == rank), None)
        return balance, next((one for one in self.stragglers if one.rank == rank), None)
