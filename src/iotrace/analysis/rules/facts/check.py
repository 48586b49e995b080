"""What `iotrace check` judges one by one: a stage, the step, a condition, a run."""

from __future__ import annotations

import msgspec

from iotrace.analysis.compare.results import (
    Comparison,
    Condition,
    EpochChange,
    PartChange,
    StageChange,
    WholeRun,
)


class CheckFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that grew by `worse_by_pct` or more, and what may be behind it; None is not looked at.

    `stage` takes longer, `decodes` decodes more bytes, `whole_run` takes longer to start workers, or for
    `part` beside its steps, `epoch` has more batches, `step` is a comparison whose steps grew by `step_pct`
    over all runs, most of it `by_stages` that are worse for certain, of so many `baselines` and `sessions`,
    these called as `before` says. Runs of one program may differ by `noise_pct`; others took CPUs in a
    session as `others` says, by which times of a clock may have grown by `beside_others_pct`; `storage` says
    how differently the sides were read. A fixed piece of work took `cpu_slower_pct` more, known to within
    `correction_error` of it. Of `side`, a session or a baseline, `side_busy` says what took its CPUs,
    `side_distrusted` why its figures say little.
    """

    stage: StageChange | None = None
    decodes: StageChange | None = None
    whole_run: WholeRun | None = None
    part: PartChange | None = None
    epoch: EpochChange | None = None
    step: Comparison | None = None
    step_pct: float = 0.0
    by_stages: bool = False
    worse_by_pct: float = 0.0
    noise_pct: float = 0.0
    before: str = "baseline"
    baselines: int = 1
    sessions: int = 1
    others: str | None = None
    beside_others_pct: dict[str, float] = {}
    storage: str | None = None
    cpu_slower_pct: float = 0.0
    correction_error: float = 0.0
    held_up: str | None = None
    side: str = ""
    side_busy: str | None = None
    side_distrusted: str = ""
    condition: Condition | None = None
    failed: str | None = None
    exit_code: int = 0

    @property
    def noise(self) -> str:
        """Say why a change may be chance, and what would tell it from chance."""
        more = "more runs on both sides" if self.baselines + self.sessions > 2 else "several baselines"
        return f"runs of one program may differ by {self.noise_pct:.0f} % here; {more} would show less"

    def by_others(self, change_pct: float, clock: str) -> str | None:
        """Return who took CPUs, where that may explain a change."""
        return self.others if change_pct < self.beside_others_pct.get(clock, 0.0) else None
